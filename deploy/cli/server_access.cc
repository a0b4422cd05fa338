#include "deploy/cli/server_access.h"

#include <string>

#include "common/base/status_macros.h"
#include "common/wire/credentials.h"

namespace quire {

void AddServerAccessFlags(ServerAccess& access, FlagTable& flags) {
  TlsTexts& paths = access.tls_paths;
  flags.Text("ssl-ca-certs", [&paths](const std::string& v) { paths.authorities = v; });
  flags.Text("ssl-certfile", [&paths](const std::string& v) { paths.certificate = v; });
  flags.Text("ssl-keyfile", [&paths](const std::string& v) { paths.key = v; });
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> CredentialsOf(
    const ServerAccess& access) {
  if (access.tls_paths.is_empty()) {
    return MakeChannelCredentials(nullptr);
  }
  if (access.tls_paths.authorities.empty()) {
    return absl::InvalidArgumentError("--ssl-certfile and --ssl-keyfile need --ssl-ca-certs");
  }
  QUIRE_ASSIGN_OR_RETURN(const auto files, TlsFiles::Open(access.tls_paths));
  return MakeChannelCredentials(files.get());
}

}  // namespace quire
