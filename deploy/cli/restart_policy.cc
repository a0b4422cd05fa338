#include "deploy/cli/restart_policy.h"

#include <algorithm>

namespace quire {

void RestartPolicy::OnStart(Instant now) {
  started_at_ = now;
  is_useful_ = false;
}

int64_t RestartPolicy::OnEnd(Instant now) {
  if (is_useful_ || now - started_at_ >= kMaxPauseNs) {
    pause_ns_ = kMinPauseNs;
    return pause_ns_;
  }
  const int64_t pause_ns = pause_ns_;
  pause_ns_ = std::min(2 * pause_ns_, kMaxPauseNs);
  return pause_ns;
}

}  // namespace quire
