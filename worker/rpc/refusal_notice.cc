#include "worker/rpc/refusal_notice.h"

#include <algorithm>

#include "common/base/log.h"
#include "common/base/printable.h"

namespace quire {

void RefusalNotice::Note(std::string_view why, Instant now) {
  const MutexLock lock(mutex_);
  noted_at_ = now;
  why_ = Printable(why, kMaxBytes);
  if (logged_.size() == kMaxLogged || std::ranges::find(logged_, why_) != logged_.end()) {
    return;
  }
  logged_.push_back(why_);
  LogWarning("no scheduler can use this worker; it is not ready", {{"cause", why_}});
}

void RefusalNotice::Clear() {
  const MutexLock lock(mutex_);
  why_.clear();
  logged_.clear();
}

std::string RefusalNotice::Read(Instant now) const {
  const MutexLock lock(mutex_);
  return now - noted_at_ < kLifetimeNs ? why_ : "";
}

}  // namespace quire
