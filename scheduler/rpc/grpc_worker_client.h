// GrpcWorkerClient is the WorkerClient for one worker process. A thread of its own keeps the
// connection: it dials with growing pauses until a session begins, reports GroupReady, mends a
// broken stream of steps while the lease lasts, and reports GroupLost when it cannot.
//
//   dial -> Handshake -> BeginEpoch -> GroupReady -> steps ... -> GroupLost -> dial ...
//
// Thread safety: SendStep, ResendStep, AbandonEpoch as for WorkerClient; construction and
//                destruction from one thread. The inbox must outlive it.
#ifndef QUIRE_SCHEDULER_RPC_GRPC_WORKER_CLIENT_H_
#define QUIRE_SCHEDULER_RPC_GRPC_WORKER_CLIENT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "proto/v1/worker.pb.h"

#include "common/wire/address.h"
#include "scheduler/loop/inbox.h"
#include "scheduler/loop/worker_client.h"
#include "scheduler/rpc/step_stream.h"
#include "scheduler/rpc/worker_session.h"

namespace quire {

struct GrpcWorkerClientTiming {
  absl::Duration lease = absl::Milliseconds(1500);  // a broken stream may be mended so long
  absl::Duration mend_pause = absl::Milliseconds(50);
  absl::Duration min_backoff = absl::Milliseconds(50);
  absl::Duration max_backoff = absl::Seconds(2);
};

class GrpcWorkerClient : public WorkerClient {
 public:
  GrpcWorkerClient(Address address,
                   const GroupSettings& settings,
                   Inbox* inbox,
                   GrpcWorkerClientTiming timing = {});
  // Ends the connection and waits for the thread.
  ~GrpcWorkerClient() override;

  void SendStep(const StepPlan& plan) override;
  void ResendStep() override;
  void AbandonEpoch(uint64_t group_epoch) override;

 private:
  void Run();
  // Serves one epoch. OK when it was abandoned or the client stops; else why it is lost.
  absl::Status ServeEpoch(uint64_t group_epoch);
  // One stream, from its first step to its end.
  absl::Status ServeStream(uint64_t group_epoch);
  void OnResponse(const v1::StepResponse& response);
  void OnStreamEnd(absl::Status status);
  void ReportFailure(const absl::Status& status);
  // Waits so long, or until the client stops.
  void Pause(absl::Duration duration);
  bool IsOver(uint64_t group_epoch);

  const GrpcWorkerClientTiming timing_;
  Inbox* const inbox_;
  WorkerSession session_;
  std::string last_failure_;  // of the thread: a failure that repeats is logged once

  absl::Mutex mutex_;
  v1::StepRequest request_ ABSL_GUARDED_BY(mutex_);  // kept to be sent again
  bool is_unanswered_ ABSL_GUARDED_BY(mutex_) = false;
  bool answered_since_break_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<StepStream> stream_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> stream_end_ ABSL_GUARDED_BY(mutex_);
  uint64_t abandoned_epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last: starts when everything else is there
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_GRPC_WORKER_CLIENT_H_
