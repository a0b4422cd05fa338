// HandlePool gives out handles: numbers under which the worker knows running sequences. When a
// handle is given back, the next plan tells the worker to release it. That plan cannot yet give the
// handle to another sequence, because the worker learns of a plan's new sequences before it
// releases the plan's handles.
//
// Thread safety: not thread-safe; owned by Epoch.
// Invariants:    every handle below max_handles is either free, in use or to be released.
#ifndef QUIRE_SCHEDULER_CORE_HANDLE_POOL_H_
#define QUIRE_SCHEDULER_CORE_HANDLE_POOL_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/ids.h"

namespace quire {

class HandlePool {
 public:
  // Makes a pool in which all handles are free. REQUIRES: max_handles >= 0.
  explicit HandlePool(int32_t max_handles);

  // Returns the handle that the next Take will return; nullopt if no handle is free. TakeReleases
  // does not change the next handle if there is one; GiveBackUnused does.
  std::optional<SequenceHandle> Next() const;
  SequenceHandle Take();                 // REQUIRES: num_free() > 0
  void GiveBack(SequenceHandle handle);  // REQUIRES: in use
  // Gives back a handle that no worker knows. The handle is free at once. REQUIRES: it is in use.
  void GiveBackUnused(SequenceHandle handle);

  // Returns the handles that the plan must release, and makes these handles free. REQUIRES: the
  // plan takes no more handles.
  std::vector<SequenceHandle> TakeReleases();

  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t num_to_release() const { return static_cast<int32_t>(to_release_.size()); }
  int32_t num_in_use() const { return max_handles() - num_free() - num_to_release(); }
  bool is_in_use(SequenceHandle handle) const;
  int32_t max_handles() const { return static_cast<int32_t>(is_in_use_.size()); }

 private:
  std::vector<SequenceHandle> free_;  // a stack, at first with the lowest handle on top
  std::vector<SequenceHandle> to_release_;
  std::vector<bool> is_in_use_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_HANDLE_POOL_H_
