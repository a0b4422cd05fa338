// TurnWatch measures the turns of the scheduling loop, from the end of the wait for events to the
// end of the turn. A turn consists of duties, such as planning and publishing. A turn longer than
// kSlowTurnNs delays tokens, so it is logged as a warning, with the duty that took longest.
//
// The log line distinguishes a loop that is blocked from a machine with too few processors. cpu_ms
// is the time in which the thread computed; cpu_wait_ms is the time in which it was runnable but
// another thread had the processor. Reading both times costs two system calls, so not every turn
// begins with a reading. Both times can therefore also cover up to kReadIntervalNs before the turn.
//
// Thread safety: not thread-safe; owned by the scheduler loop. The constructor may run on any
//                thread; all other calls come from one thread.
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
  // Ends the present duty of the turn and begins `duty`. REQUIRES: called between Begin and End;
  // `duty` is a static string.
  void Enter(std::string_view duty);
  // Ends the turn and returns its duration in nanoseconds.
  int64_t End();

 private:
  struct DutyTime {
    std::string_view duty;
    int64_t nanos = 0;
  };

  void CloseDuty(Instant now);
  void LogSlowTurn(int64_t turn_ns) const;

  const std::function<Instant()> clock_;
  std::optional<ThreadTimesReader> reader_;  // made by the first Begin, on the loop's thread
  ThreadTimes times_before_;                 // the thread's times at read_at_
  std::optional<Instant> read_at_;
  Instant began_at_ = 0;
  std::string_view duty_;  // the present duty
  Instant duty_began_at_ = 0;
  std::vector<DutyTime> duty_times_;  // times of this turn's duties, one entry per duty
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_TURN_WATCH_H_
