// TurnWatch measures the turns of the scheduling loop, from the end of the wait for events to the
// end of the turn. No stream gets a token during a turn, so a turn longer than kSlowTurnNs is
// logged as a warning, with its duty that took longest.
//
// The log line tells a loop that stands still from a machine with too few processors: cpu_ms is the
// time that the thread computed, cpu_wait_ms the time that it was runnable and another thread had
// the processor. Both are counted from up to kReadIntervalNs before the turn, else each turn would
// cost two system calls more.
//
// Thread safety: not thread-safe; owned by the scheduler loop, which makes every call but the
//                constructor's from one thread.
// Cost:          a reading of the clock for Begin, End, and each change of the duty.
#ifndef QUIRE_SCHEDULER_LOOP_TURN_WATCH_H_
#define QUIRE_SCHEDULER_LOOP_TURN_WATCH_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/thread_times.h"

namespace quire {

class TurnWatch {
 public:
  static constexpr int64_t kSlowTurnNs = 100 * kNanosPerMilli;
  static constexpr int64_t kReadIntervalNs = 10 * kNanosPerMilli;

  explicit TurnWatch(std::function<Instant()> clock) : clock_(std::move(clock)) {}

  void Begin();
  // The turn works at this duty from now on. REQUIRES: between Begin and End; the name is static.
  void Enter(std::string_view duty);
  // Returns the nanoseconds of the turn.
  int64_t End();

 private:
  struct DutyTime {
    std::string_view duty;
    int64_t nanos = 0;
  };

  void CloseDuty(Instant now);
  void LogSlowTurn(int64_t turn_ns) const;

  const std::function<Instant()> clock_;
  std::optional<ThreadTimesReader> reader_;  // made by Begin, on the thread that it reads
  ThreadTimes times_before_;                 // at read_at_
  std::optional<Instant> read_at_;
  Instant began_at_ = 0;
  std::string_view duty_;  // the present one
  Instant duty_began_at_ = 0;
  std::vector<DutyTime> duty_times_;  // of this turn, each duty once
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_TURN_WATCH_H_
