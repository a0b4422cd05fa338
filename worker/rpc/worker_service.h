// WorkerService speaks proto/v1/worker.proto to a scheduler and drives the StepExecutor.
//
// RPC threads hand epochs and steps to one executor thread, which owns the model, the pool and the
// sequences. Handshakes and reports do not need the executor thread, so a busy or stuck worker
// still gives its identity and state. No bytes from a peer can end the process: malformed messages,
// and plans that do not pass the checks, are answered with a status. An executor that hangs ends
// the process (StuckDetector).
//
// A worker listens before it has loaded its model. Until Serve, all methods except Watch are
// answered with UNAVAILABLE, reason LOADING.
//
// A scheduler that asks for a newer epoch takes the worker over at once (SchedulerClaim). From then
// on steps of older epochs are refused. The streams of older epochs end when the new epoch begins,
// or earlier, with FAILED_PRECONDITION, reason STALE_SCHEDULER or STALE_GROUP.
//
// Thread safety: the RPC methods may be called from any thread, Serve and Stop from one thread.
// Ownership:     must outlive the grpc::Server that it is registered with.
#ifndef QUIRE_WORKER_RPC_WORKER_SERVICE_H_
#define QUIRE_WORKER_RPC_WORKER_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/v1/worker.grpc.pb.h"

#include "worker/rpc/executor_thread.h"
#include "worker/rpc/refusal_notice.h"
#include "worker/rpc/steps_call.h"
#include "worker/rpc/worker_progress.h"
#include "worker/rpc/worker_reporter.h"
#include "worker/runtime/step_executor.h"

namespace quire {

// The worker's identity in the handshake.
struct WorkerIdentity {
  std::string version;
  uint64_t model_hash = 0;
  std::string determinism_fingerprint;
};

class WorkerService
    : public v1::WorkerService::WithRawCallbackMethod_Handshake<
          v1::WorkerService::WithRawCallbackMethod_BeginEpoch<
              v1::WorkerService::WithRawCallbackMethod_Steps<
                  v1::WorkerService::WithRawCallbackMethod_Watch<v1::WorkerService::Service>>>> {
 public:
  // The progress must outlive the service.
  explicit WorkerService(WorkerProgress& progress);
  ~WorkerService() override;

  // Starts serving schedulers; called when the model is loaded. The executor must outlive the
  // service and have no other user. REQUIRES: called once, before Stop.
  void Serve(WorkerIdentity identity, StepExecutor& executor);

  // Finishes the requests that were received. Ends Watch calls, and the streams of the current
  // epoch, with UNAVAILABLE, reason SHUTTING_DOWN. Refuses later requests. If the executor hangs,
  // the process ends.
  void Stop();

  // Returns true if Serve was called. Any thread.
  bool is_loaded() const { return is_loaded_.load(std::memory_order_acquire); }
  // See WorkerReporter::is_live. Any thread.
  bool is_live() const { return reporter_.is_live(); }
  // Returns the reason why schedulers refuse this worker, or "" if none does. Any thread.
  std::string refusal() const { return refusal_.Read(SteadyNow()); }
  // Calls `callback` with is_ready(), four times a second, on one thread and until Stop.
  void OnReadiness(std::function<void(bool)> callback);
  // Returns true if schedulers can use the worker. Any thread.
  bool is_ready() const { return is_loaded() && is_live() && refusal().empty(); }

  grpc::ServerUnaryReactor* Handshake(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* BeginEpoch(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Steps(
      grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Watch(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request) override;

 private:
  // Errors: kUnavailable, reason LOADING, before Serve. Any thread.
  absl::Status CheckIsLoaded() const;
  absl::StatusOr<grpc::ByteBuffer> AnswerHandshake(const grpc::ByteBuffer& bytes);
  // Returns the worker's identity. Errors: why this worker cannot serve the scheduler.
  absl::StatusOr<v1::HandshakeResponse> Introduce(const v1::HandshakeRequest& request) const;
  // Notes that this scheduler refuses the worker. Ignored if another scheduler, which still lives,
  // holds the worker: the fault then lies with the refusing scheduler.
  void NoteRefusal(uint64_t scheduler_incarnation, std::string_view why);
  absl::StatusOr<DType> KvCacheDtype(v1::DType requested) const;

  // The methods below run on the executor thread only.
  absl::StatusOr<grpc::ByteBuffer> DoBeginEpoch(const v1::BeginEpochRequest& request);
  void DoStep(const std::shared_ptr<StepsCall>& stream, const grpc::ByteBuffer& request);
  absl::StatusOr<grpc::ByteBuffer> ExecuteStep(const grpc::ByteBuffer& bytes);
  void Remember(const std::shared_ptr<StepsCall>& stream);
  void EndStreams(const absl::Status& status);

  WorkerProgress& progress_;

  // Set by Serve; constant once is_loaded_ is true.
  WorkerIdentity identity_;
  StepExecutor* executor_ = nullptr;
  std::atomic<bool> is_loaded_{false};

  RefusalNotice refusal_;
  v1::StepRequest step_request_;    // reused, so that its arrays are allocated only once
  v1::StepResponse step_response_;  // reused
  std::vector<std::weak_ptr<StepsCall>> streams_;  // streams that carried a step of this epoch
  WorkerReporter reporter_;
  ExecutorThread thread_;  // last member: the thread ends before other members are destroyed
};

}  // namespace quire

#endif  // QUIRE_WORKER_RPC_WORKER_SERVICE_H_
