// RefusalNotice remembers why a scheduler refuses this worker. A refused worker computes nothing
// until an operator changes something, so it is not ready, and its log says why.
//
// Thread safety: all methods may be called from any thread.
#ifndef QUIRE_WORKER_RPC_REFUSAL_NOTICE_H_
#define QUIRE_WORKER_RPC_REFUSAL_NOTICE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"

#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace quire {

class RefusalNotice {
 public:
  // A refusal is forgotten after this time. A scheduler repeats its refusal about once a second.
  static constexpr int64_t kLifetimeNs = 5 * kNanosPerSecond;

  // Notes the refusal. Logs each reason once, because two schedulers can repeat two reasons in
  // turn. After kMaxLogged reasons it logs no more.
  void Note(std::string_view why, Instant now);
  static constexpr size_t kMaxLogged = 8;
  static constexpr size_t kMaxBytes = 512;  // upper bound on a reason; the rest is dropped

  // Forgets the refusal, because a scheduler uses the worker.
  void Clear();

  // Returns the reason, or "" if no scheduler refuses the worker.
  std::string Read(Instant now) const;

 private:
  mutable Mutex mutex_;
  std::string why_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> logged_ ABSL_GUARDED_BY(mutex_);  // reasons since the last Clear
  Instant noted_at_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace quire

#endif  // QUIRE_WORKER_RPC_REFUSAL_NOTICE_H_
