// WorkerProgress is the state that a worker reports: its phase, the loaded bytes or the current
// step, a counter that grows while the worker makes progress, and the worker's holder
// (SchedulerClaim). The loading thread and the executor write it; the reporter reads it.
//
// Thread safety: all methods may be called from any thread.
// Cost:          a short critical section per call; a step makes a few calls.
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
  // Starts in the phase LOADING. peers: the listener for the other ranks, or null. The backend and
  // the listener must outlive the object.
  explicit WorkerProgress(const KernelBackend& backend, const PeerListener* peers = nullptr);

  // 16 random bytes, drawn at the start of the process.
  const std::string& uuid() const { return uuid_; }

  // Notes how much of the model has been read.
  void Load(int64_t loaded_bytes, int64_t total_bytes);
  void FinishLoad();

  // Notes that an epoch begins. pool_bytes: bytes of the pools to allocate or clear.
  void BeginEpoch(int64_t pool_bytes);
  // Notes the state after BeginEpoch. Called in both cases: the epoch began, or it was refused.
  void EndBeginEpoch(uint64_t scheduler_incarnation,
                     uint64_t group_epoch,
                     uint64_t last_step_id,
                     int64_t num_window_places);

  void BeginStep(uint64_t step_id);
  // Notes the end of a step. The step was refused if last_step_id differs from BeginStep's step_id.
  void EndStep(uint64_t last_step_id, int64_t num_window_places);

  // Adds 1 to the progress counter, for progress that the backend does not count.
  void Tick();

  // AddWaiter and RemoveWaiter count what waits for the executor's step to end: BeginEpoch calls
  // and the shutdown.
  void AddWaiter();
  void RemoveWaiter();

  // AddTask and RemoveTask count the executor's tasks. A task is added before it is queued, and
  // removed when it is done or refused.
  void AddTask();
  void RemoveTask();

  struct State {
    v1::WatchReport report;
    int num_waiters = 0;
    int num_tasks = 0;       // waiting tasks and the running one
    int64_t pool_bytes = 0;  // as passed to the last BeginEpoch
  };
  State Read() const;

  // Like Ask, Check and Hear of SchedulerClaim, with the current time.
  absl::Status Ask(uint64_t scheduler_incarnation, uint64_t group_epoch);
  absl::Status CheckClaim(uint64_t scheduler_incarnation, uint64_t group_epoch) const;
  void Hear(uint64_t scheduler_incarnation);

 private:
  const KernelBackend& backend_;
  const PeerListener* const peers_;
  const std::string uuid_;

  mutable Mutex mutex_;
  SchedulerClaim claim_ ABSL_GUARDED_BY(mutex_);
  // report.progress() does not include the progress that the backend counts.
  State state_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_WORKER_RPC_WORKER_PROGRESS_H_
