// Fail-points make a worker fail on purpose, at a place that a test chooses: hang, be slow, crash.
// They are off unless --fail-points says otherwise.
//
//   stick-at-step=N         the executor stands still for ever in step N
//   stick-when-idle=N       it stands still for ever when step N is answered
//   slow-step=N:MILLIS      step N takes so much longer; progress is seen all the while
//   crash-on-token=ID       a step that computes this input token ends the process as a crash would
//   stick-on-token=ID       a step that computes this input token stands still for ever
//   crash-before-step=N     the process crashes before step N is computed,
//   crash-after-step=N      or when it is computed and not answered yet
//   wrong-digests           every answer carries the digest of another plan
//   stick-in-load           loading the model stands still for ever
//   slow-load=MILLIS        loading takes so much longer; progress is seen all the while
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

// Step 0 is none.
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

// Of the flag's text: names from above, separated by commas, each at most once. Empty: none.
absl::StatusOr<FailPointList> ParseFailPoints(std::string_view text);

class FailPoints {
 public:
  // `tick` is called while a step is slow, to say that it makes progress.
  FailPoints(const FailPointList& list, std::function<void()> tick);

  // The same while loading is.
  void InLoad(const std::function<void()>& tick) const;
  // The next step is about to compute these tokens.
  void BeforeStep(std::span<const TokenId> token_ids);
  // It is done, and about to be answered with this digest.
  void AfterStep(uint64_t* plan_digest) const;
  // It is answered.
  void WhenIdle() const;

 private:
  const FailPointList list_;
  const std::function<void()> tick_;
  uint64_t num_steps_ = 0;  // begun
};

}  // namespace quire

#endif  // QUIRE_WORKER_RUNTIME_FAIL_POINTS_H_
