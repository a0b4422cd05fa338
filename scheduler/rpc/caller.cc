#include "scheduler/rpc/caller.h"

#include <string_view>

namespace quire {

absl::StatusOr<std::string> TenantOfCall(ApiKeys* keys, const grpc::ServerContextBase& context) {
  if (keys == nullptr) {
    return "";
  }
  const auto& metadata = context.client_metadata();
  std::string_view authorization;
  if (metadata.count(kAuthorization) == 1) {
    const grpc::string_ref value = metadata.find(kAuthorization)->second;
    authorization = {value.data(), value.size()};
  }
  return keys->TenantOf(authorization);
}

}  // namespace quire
