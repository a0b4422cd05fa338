// GrpcWorkerGroup is the WorkerClient for the workers of a group. A WorkerGroup makes the
// decisions. WorkerLinks carry out the WorkerGroup's actions, and the WorkerGroup's reports go to
// the loop's inbox. The thread that delivers an event also handles it. A separate thread ticks the
// WorkerGroup's timers.
//
// Thread safety: SendStep and AbandonEpoch as for WorkerClient; construction, Start and destruction
//                from one thread. The inbox must outlive this object.
#ifndef QUIRE_SCHEDULER_RPC_GRPC_WORKER_GROUP_H_
#define QUIRE_SCHEDULER_RPC_GRPC_WORKER_GROUP_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include <grpcpp/support/byte_buffer.h>

#include "proto/v1/worker.pb.h"

#include "common/step/rank_status.h"
#include "common/wire/address.h"
#include "common/wire/tls_files.h"
#include "scheduler/group/worker_group.h"
#include "scheduler/loop/inbox.h"
#include "scheduler/loop/worker_client.h"
#include "scheduler/rpc/worker_link.h"

namespace quire {

// Callbacks of a worker group. They are called on any thread, one at a time, and must be quick.
struct GroupListener {
  // Reports why a worker is refused. Not called again for a worker while the reason stays the same.
  std::function<void(const absl::Status&)> on_refusal;
  // Reports the statuses of all ranks, in the order of ranks. Called whenever a status changes.
  std::function<void(const std::vector<RankStatus>&)> on_ranks;
};

class GrpcWorkerGroup : public WorkerClient {
 public:
  // `addresses` is indexed by rank. Without TLS files, links are plain text.
  GrpcWorkerGroup(std::vector<Address> addresses,
                  const GroupSettings& settings,
                  const GroupTiming& timing,
                  Inbox* inbox,
                  GroupListener listener,
                  std::shared_ptr<TlsFiles> tls = nullptr);
  // Starts to dial the workers. Call once.
  void Start();
  // Closes all links and waits until their calls have ended.
  ~GrpcWorkerGroup() override;

  void SendStep(const StepPlan& plan) override;
  void AbandonEpoch(uint64_t group_epoch) override;

 private:
  void Run();
  std::shared_ptr<WorkerLink> Dial(const DialLink& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Passes an event to the group and performs the actions that follow.
  template <typename Event>
  void On(const Event& event);
  void DoActions() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReportRanks() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Do(const DialLink& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Do(const CloseLink& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Do(const GreetWorker& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Do(const BeginWorkerEpoch& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Do(const OpenSteps& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Do(const BreakSteps& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Do(const SendPlan& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Do(const ReportReady& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Do(ReportResult& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Do(const ReportStale& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Do(const ReportStandby& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Do(const ReportLost& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Do(const ReportRefused& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Do(const ReportAway& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Do(const ReportLoading& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the link of the rank; null after Close.
  std::shared_ptr<WorkerLink>& LinkOf(LinkId link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Close(std::shared_ptr<WorkerLink>& link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Destroys closed links whose calls have all ended.
  void DestroyClosedLinks() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns false if last_causes_ already holds the message of `status` for the rank. Otherwise
  // stores the message there and returns true.
  bool IsNews(int32_t rank, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::vector<Address> addresses_;
  const GroupSettings settings_;
  Inbox* const inbox_;
  const GroupListener listener_;
  const std::shared_ptr<TlsFiles> tls_;  // null: plain text

  absl::Mutex mutex_;
  WorkerGroup group_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<WorkerLink>> links_ ABSL_GUARDED_BY(mutex_);  // by rank; can be null
  std::vector<std::shared_ptr<WorkerLink>> closed_ ABSL_GUARDED_BY(mutex_);
  std::vector<RankStatus> ranks_ ABSL_GUARDED_BY(mutex_);         // last passed to on_ranks
  std::vector<std::string> last_causes_ ABSL_GUARDED_BY(mutex_);  // by rank; see IsNews
  v1::StepRequest request_ ABSL_GUARDED_BY(mutex_);               // reused by each step
  grpc::ByteBuffer plan_ ABSL_GUARDED_BY(mutex_);                 // the last plan, encoded
  uint64_t secret_epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string secret_ ABSL_GUARDED_BY(mutex_);  // the ranks' secret in the epoch secret_epoch_
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // started by Start
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_GRPC_WORKER_GROUP_H_
