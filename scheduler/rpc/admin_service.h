// AdminService is what an operator may do: pin, unpin and list prefixes, and see what the server
// holds. It is served on an address of its own. Every method is registered raw and parsed by us, as
// those of GenerationService are.
//
// Thread safety: the library calls it from many threads at once.
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
  // store: null, or it must outlive the service.
  AdminService(const ServiceParts& parts, PrefixStore* store)
      : parts_(parts), store_(store), state_answers_(parts.model, parts.inbox, parts.state) {}

  // Pins what the store has, as soon as workers are ready. Call once, before the first call.
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
  // In the log, where calls bring API keys.
  void TellWho(const char* what, const grpc::CallbackServerContext& context) const;
  // Its tokens are known, or text has to be tokenized first.
  absl::Status CheckPin(const v1::PinPrefixRequest& request) const;
  absl::StatusOr<std::vector<TokenId>> TokensOf(const v1::PinPrefixRequest& request,
                                                grpc::CallbackServerContext* context) const;
  // Answers now or later.
  void Pin(const v1::PinPrefixRequest& request,
           grpc::CallbackServerContext* context,
           grpc::ServerUnaryReactor* reactor,
           grpc::ByteBuffer* response) const;
  // Answers when the store has saved what it was told: not on the caller's thread, which is the
  // loop's.
  void FinishSaved(grpc::ServerUnaryReactor* reactor) const;

  const ServiceParts parts_;
  PrefixStore* const store_;
  StateAnswers state_answers_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_ADMIN_SERVICE_H_
