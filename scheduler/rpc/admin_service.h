// AdminService is the operator's service: it pins, unpins and lists prefixes, and shows load and
// blocks. The service listens on a separate address. Every method is registered raw (gRPC passes
// bytes), and wire_message.h parses the messages, as in GenerationService.
//
// Thread safety: gRPC calls the methods from many threads at once.
#ifndef QUIRE_SCHEDULER_RPC_ADMIN_SERVICE_H_
#define QUIRE_SCHEDULER_RPC_ADMIN_SERVICE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "proto/v1/admin.grpc.pb.h"

#include "scheduler/rpc/generate_call.h"
#include "scheduler/rpc/prefix_store.h"
#include "scheduler/rpc/state_answers.h"

namespace quire {

using RawAdminService = v1::AdminService::WithRawCallbackMethod_PinPrefix<
    v1::AdminService::WithRawCallbackMethod_UnpinPrefix<
        v1::AdminService::WithRawCallbackMethod_ListPrefixes<
            v1::AdminService::WithRawCallbackMethod_GetLoad<
                v1::AdminService::WithRawCallbackMethod_GetState<v1::AdminService::Service>>>>>;

class AdminService final : public RawAdminService {
 public:
  // store: may be null; if not, the store must outlive the service.
  AdminService(const ServiceParts& parts, PrefixStore* store)
      : parts_(parts), store_(store), state_answers_(parts.model, parts.inbox, parts.state) {}

  // Asks the loop to pin the store's prefixes as soon as workers are ready. Call this once, before
  // clients can call.
  // REQUIRES: store is not null.
  void RestorePrefixes();

  grpc::ServerUnaryReactor* PinPrefix(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* UnpinPrefix(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListPrefixes(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetLoad(grpc::CallbackServerContext* context,
                                    const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetState(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;

 private:
  // Logs the caller's tenant, if calls carry API keys.
  void LogCaller(const char* what, const grpc::CallbackServerContext& context) const;
  // Checks that the server admits requests and that the fields of `request` are valid, except for
  // the token ids, which TokensOf checks.
  absl::Status CheckPin(const v1::PinPrefixRequest& request) const;
  absl::StatusOr<std::vector<TokenId>> TokensOf(const v1::PinPrefixRequest& request,
                                                grpc::CallbackServerContext* context) const;
  // Refuses the call at once, or answers when the prefix is pinned and saved.
  void Pin(const v1::PinPrefixRequest& request,
           grpc::CallbackServerContext* context,
           grpc::ServerUnaryReactor* reactor,
           grpc::ByteBuffer* response) const;
  // Answers the call when the store has saved the change, or at once if there is no store. Runs on
  // the loop's thread, which must not wait for the disk: the store's thread waits and then answers.
  void FinishSaved(grpc::ServerUnaryReactor* reactor) const;

  const ServiceParts parts_;
  PrefixStore* const store_;
  StateAnswers state_answers_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_ADMIN_SERVICE_H_
