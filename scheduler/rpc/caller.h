// Finds the tenant of a call's API key, which the server has checked (scheduler_server.cc).
//
// Thread safety: a free function, safe from any thread.
#ifndef QUIRE_SCHEDULER_RPC_CALLER_H_
#define QUIRE_SCHEDULER_RPC_CALLER_H_

#include <string>

#include "absl/status/statusor.h"
#include <grpcpp/server_context.h>

#include "common/wire/api_keys.h"

namespace quire {

// Returns the tenant of the call's key; empty if `keys` is null. Errors: those of
// ApiKeys::TenantOf, if the key was removed after the server checked it.
absl::StatusOr<std::string> TenantOfCall(ApiKeys* keys, const grpc::ServerContextBase& context);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_CALLER_H_
