// GenerationService is the public service. Every method is registered raw: gRPC passes bytes, and
// the service parses them (wire_message.h says why).
//
// Thread safety: gRPC calls the methods from many threads at once.
#ifndef QUIRE_SCHEDULER_RPC_GENERATION_SERVICE_H_
#define QUIRE_SCHEDULER_RPC_GENERATION_SERVICE_H_

#include <cstddef>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "proto/v1/generation.grpc.pb.h"

#include "scheduler/rpc/generate_call.h"
#include "scheduler/rpc/unary_call.h"

namespace quire {

using RawGenerationService = v1::GenerationService::WithRawCallbackMethod_Generate<
    v1::GenerationService::WithRawCallbackMethod_Abort<
        v1::GenerationService::WithRawCallbackMethod_Tokenize<
            v1::GenerationService::WithRawCallbackMethod_Detokenize<
                v1::GenerationService::WithRawCallbackMethod_GetServerInfo<
                    v1::GenerationService::Service>>>>>;

class GenerationService final : public RawGenerationService {
 public:
  explicit GenerationService(const ServiceParts& parts) : parts_(parts) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;

 private:
  // Runs `run` on the task pool if status is OK, else refuses the call. On a gRPC thread, long work
  // would delay the workers' answers. num_bytes: bytes that `run` holds until the pool has run it.
  void Submit(UnaryCall* call, absl::Status status, size_t num_bytes, std::function<void()> run);

  absl::StatusOr<v1::AbortResponse> DoAbort(const v1::AbortRequest& request,
                                            const grpc::CallbackServerContext& context);
  absl::StatusOr<v1::TokenizeResponse> DoTokenize(const v1::TokenizeRequest& request,
                                                  const StopCheck& stop_check) const;
  absl::Status CheckIds(const v1::DetokenizeRequest& request) const;
  // REQUIRES: CheckIds returned OK.
  absl::StatusOr<v1::DetokenizeResponse> DoDetokenize(const v1::DetokenizeRequest& request) const;
  absl::StatusOr<v1::GetServerInfoResponse> DoGetServerInfo(
      const v1::GetServerInfoRequest& request) const;

  const ServiceParts parts_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_GENERATION_SERVICE_H_
