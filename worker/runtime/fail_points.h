// Fail-points make a worker fail on purpose, in a step that a test chooses: hang, be slow, crash,
// answer wrongly. Some act while the model loads. Only the fail-points that --fail-points lists are
// active.
//
//   stick-at-step=N         the executor hangs in step N
//   stick-when-idle=N       the executor hangs after step N is answered
//   slow-step=N:MILLIS      step N takes MILLIS ms longer, and reports progress meanwhile
//   crash-on-token=ID       a step that computes this input token ends the process with SIGABRT
//   stick-on-token=ID       a step that computes this input token hangs
//   crash-before-step=N     the process crashes before step N is computed
//   crash-after-step=N      the process crashes after step N is computed, before it is answered
//   wrong-digests           every answer carries the digest of another plan
//   stick-in-load           loading the model hangs
//   slow-load=MILLIS        loading takes MILLIS ms longer, and reports progress meanwhile
//
// Steps are counted from 1, from the start of the process.
//
// Thread safety: one caller at a time: the thread that loads, then the executor thread.
// Errors:        kInvalidArgument, reason FLAG, message "--fail-points: rule".
#ifndef QUIRE_WORKER_RUNTIME_FAIL_POINTS_H_
#define QUIRE_WORKER_RUNTIME_FAIL_POINTS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"

#include "common/base/ids.h"

namespace quire {

// Step numbers and durations are 0 if their fail-point is off. Steps are counted from 1.
struct FailPointList {
  uint64_t stick_at_step = 0;
  uint64_t stick_when_idle = 0;
  uint64_t slow_step = 0;
  int64_t slow_step_millis = 0;
  std::optional<TokenId> crash_on_token;
  std::optional<TokenId> stick_on_token;
  uint64_t crash_before_step = 0;
  uint64_t crash_after_step = 0;
  bool has_wrong_digests = false;
  bool stick_in_load = false;
  int64_t slow_load_millis = 0;

  friend bool operator==(const FailPointList&, const FailPointList&) = default;
};

// Parses the value of --fail-points: fail-points as listed above, separated by commas, each named
// at most once.
absl::StatusOr<FailPointList> ParseFailPoints(std::string_view text);

class FailPoints {
 public:
  // `tick` is called while a step is slow, to report progress.
  FailPoints(const FailPointList& list, std::function<void()> tick);

  // Called while the model loads. Calls `tick` while loading is slow.
  void InLoad(const std::function<void()>& tick) const;
  // Called before a step computes these tokens.
  void BeforeStep(std::span<const TokenId> token_ids);
  // Called after the step, before the step is answered. May falsify the answer's digest.
  void AfterStep(uint64_t* plan_digest) const;
  // Called after the step is answered.
  void WhenIdle() const;

 private:
  const FailPointList list_;
  const std::function<void()> tick_;
  uint64_t num_steps_ = 0;  // steps begun so far
};

}  // namespace quire

#endif  // QUIRE_WORKER_RUNTIME_FAIL_POINTS_H_
