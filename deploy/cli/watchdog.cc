#include "deploy/cli/watchdog.h"

#include <algorithm>

namespace quire {
namespace {

constexpr int kMaxDoublings = 4;

}  // namespace

void Watchdog::OnStart(Instant now) {
  last_look_ = now;
  silence_ns_ = 0;
  has_sign_ = false;
}

void Watchdog::OnSign() {
  silence_ns_ = 0;
  has_sign_ = true;
  num_mute_starts_ = 0;
}

bool Watchdog::IsSilent(Instant now) {
  silence_ns_ += std::min(now - last_look_, kMaxLookIntervalNs);
  last_look_ = now;
  if (silence_ns_ < limit_ns_ << num_mute_starts_) {
    return false;
  }
  silence_ns_ = 0;
  if (!has_sign_) {
    num_mute_starts_ = std::min(num_mute_starts_ + 1, kMaxDoublings);
  }
  return true;
}

}  // namespace quire
