// WorkerLink is one connection to the worker of one rank, with the calls over this connection:
// Handshake, BeginEpoch, Steps and Watch. The link makes no decisions: every event goes to the
// callbacks.
//
// Thread safety: one caller at a time. Callbacks come from gRPC threads, several at once. They can
//                come until the link is destroyed, even after Close.
// Lifetime:      every call in progress holds a reference to the link. A callback must not drop the
//                last reference: gRPC joins its callback threads when the last channel is
//                destroyed, and a thread that joins itself ends the process.
#ifndef QUIRE_SCHEDULER_RPC_WORKER_LINK_H_
#define QUIRE_SCHEDULER_RPC_WORKER_LINK_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>

#include "proto/v1/worker.grpc.pb.h"

#include "common/step/step_result.h"
#include "common/wire/watch_stream.h"
#include "scheduler/group/worker_hello.h"
#include "scheduler/rpc/step_stream.h"

namespace quire {

class WorkerLink : public std::enable_shared_from_this<WorkerLink> {
 public:
  struct Callbacks {
    std::function<void(absl::StatusOr<WorkerHello>)> on_hello;
    std::function<void(absl::Status)> on_epoch_begun;
    std::function<void(StepResult)> on_answer;
    std::function<void(absl::Status)> on_steps_end;
    std::function<void(const WorkerReport&)> on_report;
    std::function<void(absl::Status)> on_watch_end;
  };

  // Starts a link over `channel`, with a watch stream. No other link may use `channel`.
  static std::shared_ptr<WorkerLink> Start(std::shared_ptr<grpc::Channel> channel,
                                           uint64_t scheduler_incarnation,
                                           Callbacks callbacks);

  void Greet(const v1::HandshakeRequest& request);
  void BeginEpoch(const v1::BeginEpochRequest& request);
  void OpenSteps();
  // Drops the request if OpenSteps was not called.
  void Send(const grpc::ByteBuffer& request);
  void BreakSteps();
  // Cancels all calls.
  void Close();

 private:
  template <typename Request, typename Response>
  struct UnaryCall;
  // References that a call in progress holds. The reference to the link is dropped last.
  template <typename Call>
  struct Held {
    std::shared_ptr<WorkerLink> link;
    std::shared_ptr<Call> call;
  };

  WorkerLink(std::shared_ptr<grpc::Channel> channel, Callbacks callbacks);
  void Watch(uint64_t scheduler_incarnation);

  const Callbacks callbacks_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::WorkerService::Stub> stub_;
  std::shared_ptr<UnaryCall<v1::HandshakeRequest, v1::HandshakeResponse>> greeting_;
  std::shared_ptr<UnaryCall<v1::BeginEpochRequest, v1::BeginEpochResponse>> beginning_;
  std::shared_ptr<StepStream> steps_;
  std::shared_ptr<WatchStream> watch_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_WORKER_LINK_H_
