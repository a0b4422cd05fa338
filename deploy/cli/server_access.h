// What a sub-command needs to get at a server beside its address: whom it believes and what it
// shows. Flags, the same for every sub-command.
//
// Thread safety: free functions and a value type.
#ifndef QUIRE_DEPLOY_CLI_SERVER_ACCESS_H_
#define QUIRE_DEPLOY_CLI_SERVER_ACCESS_H_

#include <memory>

#include "absl/status/statusor.h"
#include <grpcpp/security/credentials.h>

#include "common/wire/tls_files.h"
#include "deploy/cli/flag_table.h"

namespace quire {

// For usage texts.
inline constexpr char kServerAccessUsage[] =
    R"(    --ssl-ca-certs FILE              TLS: the authorities, in PEM, of the server
    --ssl-certfile FILE              our own certificate, where the server asks for one
    --ssl-keyfile FILE               its key
)";

struct ServerAccess {
  TlsTexts tls_paths;
};

// `access` must outlive the table.
void AddServerAccessFlags(ServerAccess& access, FlagTable& flags);

// Plain text without flags.
// Errors: kInvalidArgument, for what is missing and for files that cannot be used.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> CredentialsOf(const ServerAccess& access);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_SERVER_ACCESS_H_
