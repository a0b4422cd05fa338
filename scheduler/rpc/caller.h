// Who calls, where calls bring API keys. The port has looked at the key before
// (scheduler_server.cc); here is whose it is.
//
// Thread safety: a free function, safe from any thread.
#ifndef QUIRE_SCHEDULER_RPC_CALLER_H_
#define QUIRE_SCHEDULER_RPC_CALLER_H_

#include <string>

#include "absl/status/statusor.h"
#include <grpcpp/server_context.h>

#include "common/wire/api_keys.h"

namespace quire {

// Empty where there are no keys (null). Errors: those of ApiKeys::TenantOf, for a key that was
// taken out since.
absl::StatusOr<std::string> TenantOfCall(ApiKeys* keys, const grpc::ServerContextBase& context);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_CALLER_H_
