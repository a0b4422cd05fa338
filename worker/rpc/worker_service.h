// WorkerService speaks proto/v1/worker.proto to a scheduler and drives the StepExecutor.
//
// RPC threads hand every request to one executor thread, which owns the model, the pool and all
// state below. Nothing that a peer sends can end the process: bytes that are no message, and plans
// that do not pass the checks, are answered with a status.
//
// A scheduler that begins a newer epoch takes the worker over: streams of older epochs end with
// FAILED_PRECONDITION STALE_GROUP.
//
// Thread safety: the RPC methods may be called from any thread.
// Ownership:     must outlive the grpc::Server that it is registered with.
#ifndef QUIRE_WORKER_RPC_WORKER_SERVICE_H_
#define QUIRE_WORKER_RPC_WORKER_SERVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/v1/worker.grpc.pb.h"

#include "worker/rpc/executor_thread.h"
#include "worker/rpc/steps_call.h"
#include "worker/runtime/step_executor.h"

namespace quire {

inline constexpr uint32_t kWorkerProtocolVersion = 1;

// What a worker says of itself in the handshake.
struct WorkerIdentity {
  std::string uuid;  // 16 random bytes, one value per process start
  std::string version;
  uint64_t model_hash = 0;
  std::string determinism_fingerprint;
};

// 16 bytes from the kernel's random device.
std::string MakeWorkerUuid();

class WorkerService
    : public v1::WorkerService::WithRawCallbackMethod_Handshake<
          v1::WorkerService::WithRawCallbackMethod_BeginEpoch<
              v1::WorkerService::WithRawCallbackMethod_Steps<v1::WorkerService::Service>>> {
 public:
  // The executor must outlive the service and be used by nobody else.
  WorkerService(WorkerIdentity identity, StepExecutor& executor);
  ~WorkerService() override;

  // Finishes what was received, ends the streams of the current epoch with UNAVAILABLE, reason
  // SHUTTING_DOWN, and refuses everything later.
  void Stop();

  grpc::ServerUnaryReactor* Handshake(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* BeginEpoch(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Steps(
      grpc::CallbackServerContext* context) override;

 private:
  using UnaryHandler =
      absl::StatusOr<grpc::ByteBuffer> (WorkerService::*)(const grpc::ByteBuffer& request);

  // Runs the handler on the executor thread and finishes the call with what it returns.
  grpc::ServerUnaryReactor* RunUnary(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response,
                                     UnaryHandler handler);

  // All below: on the executor thread only.
  absl::StatusOr<grpc::ByteBuffer> DoHandshake(const grpc::ByteBuffer& bytes);
  absl::StatusOr<grpc::ByteBuffer> DoBeginEpoch(const grpc::ByteBuffer& bytes);
  void DoStep(const std::shared_ptr<StepsCall>& stream, const grpc::ByteBuffer& request);
  absl::StatusOr<grpc::ByteBuffer> ExecuteStep(const grpc::ByteBuffer& bytes);
  absl::StatusOr<DType> KvCacheDtype(v1::DType requested) const;
  void Remember(const std::shared_ptr<StepsCall>& stream);
  void EndStreams(const absl::Status& status);

  const WorkerIdentity identity_;
  StepExecutor& executor_;
  v1::StepRequest step_request_;                   // reused, so that its columns are allocated once
  v1::StepResponse step_response_;                 // reused
  std::vector<std::weak_ptr<StepsCall>> streams_;  // those that had a step of this epoch
  ExecutorThread thread_;                          // last: ends before the rest
};

}  // namespace quire

#endif  // QUIRE_WORKER_RPC_WORKER_SERVICE_H_
