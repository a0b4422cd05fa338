// StepTimer learns how long steps take and says when one is overdue. Steps are kept apart by the
// number of their tokens, in powers of two: a prefill of 2048 tokens on a CPU may take a thousand
// times as long as a decode.
//
// Thread safety: not thread-safe; owned by the scheduler loop.
#ifndef QUIRE_SCHEDULER_LOOP_STEP_TIMER_H_
#define QUIRE_SCHEDULER_LOOP_STEP_TIMER_H_

#include <array>
#include <cstdint>

namespace quire {

struct StepTimerConfig {
  // A dead worker shows by its connection within a second; this is for one that is alive and stuck,
  // so it may be generous: a slow step must never be taken for a hung one.
  int64_t min_timeout_ns = 30'000'000'000;
  // While nothing is known about steps of that size.
  int64_t first_timeout_ns = 600'000'000'000;
  // Times the moving average.
  int64_t factor = 8;
};

class StepTimer {
 public:
  explicit StepTimer(const StepTimerConfig& config) : config_(config) {}

  void Observe(int64_t num_tokens, int64_t duration_ns);

  // How long to wait for a step of so many tokens.
  int64_t TimeoutFor(int64_t num_tokens) const;

 private:
  static constexpr int kNumBuckets = 32;
  static int BucketOf(int64_t num_tokens);

  const StepTimerConfig config_;
  std::array<int64_t, kNumBuckets> average_ns_{};  // 0: never seen
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_STEP_TIMER_H_
