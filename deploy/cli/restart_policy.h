// RestartPolicy computes the pause before an ended program is started again: 100 ms at first,
// doubled (up to 10 s) after each useless start. A start is useful if the program did its work. A
// start also counts as useful if the program ran for at least the longest pause (10 s), because a
// loop of such starts is slow even without a pause.
//
// Thread safety: one caller at a time. RestartPolicy has no clock: the caller passes the time.
#ifndef QUIRE_DEPLOY_CLI_RESTART_POLICY_H_
#define QUIRE_DEPLOY_CLI_RESTART_POLICY_H_

#include <cstdint>

#include "common/base/clock.h"

namespace quire {

class RestartPolicy {
 public:
  static constexpr int64_t kMinPauseNs = 100 * kNanosPerMilli;
  static constexpr int64_t kMaxPauseNs = 10 * kNanosPerSecond;

  void OnStart(Instant now);

  // Notes that the program does its work.
  void OnUseful() { is_useful_ = true; }
  bool is_useful() const { return is_useful_; }

  // Notes that the program has ended, or could not be started. Returns the pause until the next
  // start.
  int64_t OnEnd(Instant now);

 private:
  Instant started_at_ = 0;
  bool is_useful_ = false;
  int64_t pause_ns_ = kMinPauseNs;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_RESTART_POLICY_H_
