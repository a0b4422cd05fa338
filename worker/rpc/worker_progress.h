// WorkerProgress is what a worker says of itself while it works: what it does, how far it is,
// whether anything moves, and which scheduler has it. The threads that load and execute write it;
// the reporter reads it.
//
// Thread safety: all methods may be called from any thread.
// Cost:          a short critical section a call; a step makes two calls.
#ifndef QUIRE_WORKER_RPC_WORKER_PROGRESS_H_
#define QUIRE_WORKER_RPC_WORKER_PROGRESS_H_

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"

#include "proto/v1/worker.pb.h"

#include "common/base/mutex.h"
#include "kernels/api/kernel_backend.h"
#include "kernels/collective/peer_listener.h"
#include "worker/runtime/scheduler_claim.h"

namespace quire {

class WorkerProgress {
 public:
  // Loading. The backend and the peers must outlive the object.
  // Peers: where the other ranks find this one, or null.
  explicit WorkerProgress(const KernelBackend& backend, const PeerListener* peers = nullptr);

  // 16 random bytes, one value per process start.
  const std::string& uuid() const { return uuid_; }

  // More of the model was read: bytes so far, and in all.
  void Load(int64_t loaded_bytes, int64_t total_bytes);
  void FinishLoad();

  // Pools of so many bytes are taken, or cleared.
  void BeginEpoch(int64_t pool_bytes);
  // What holds now, whether or not the epoch was refused.
  void EndBeginEpoch(uint64_t scheduler_incarnation,
                     uint64_t group_epoch,
                     uint64_t last_step_id,
                     int64_t num_window_places);

  void BeginStep(uint64_t step_id);
  // Another last step than the one that began: that one was refused.
  void EndStep(uint64_t last_step_id, int64_t num_window_places);

  // Something was done that the backend does not count.
  void Tick();

  // Somebody waits for the executor to leave its step for good: a newer epoch, the end.
  void AddWaiter();
  void RemoveWaiter();

  // The executor was given something to do; it is done, or was not taken.
  void AddTask();
  void RemoveTask();

  struct State {
    v1::WatchReport report;
    int num_waiters = 0;
    int num_tasks = 0;       // that wait, and the one that runs
    int64_t pool_bytes = 0;  // of the epoch that began last
  };
  State Read() const;

  // Of SchedulerClaim, at this moment.
  absl::Status Ask(uint64_t scheduler_incarnation, uint64_t group_epoch);
  absl::Status CheckClaim(uint64_t scheduler_incarnation, uint64_t group_epoch) const;
  void Hear(uint64_t scheduler_incarnation);

 private:
  const KernelBackend& backend_;
  const PeerListener* const peers_;
  const std::string uuid_;

  mutable Mutex mutex_;
  SchedulerClaim claim_ ABSL_GUARDED_BY(mutex_);
  State state_ ABSL_GUARDED_BY(mutex_);  // its progress is what was done beside the backend
};

}  // namespace quire

#endif  // QUIRE_WORKER_RPC_WORKER_PROGRESS_H_
