// Access to a server: TLS files and an API key. The flags are the same for every sub-command.
//
// Thread safety: free functions, safe from any thread while none calls setenv.
#ifndef QUIRE_DEPLOY_CLI_SERVER_ACCESS_H_
#define QUIRE_DEPLOY_CLI_SERVER_ACCESS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/security/credentials.h>

#include "common/wire/address.h"
#include "common/wire/tls_files.h"
#include "deploy/cli/flag_table.h"

namespace quire {

// Lines of a usage text that explain the flags of AddServerAccessFlags.
inline constexpr char kServerAccessUsage[] =
    R"(    --ssl-ca-certs FILE              use TLS; PEM file of the authorities that may sign the
                                     server's certificate
    --ssl-certfile FILE              the client's certificate, if the server asks for one
    --ssl-keyfile FILE               private key of --ssl-certfile
    --api-key-file FILE              the client's API key, if the server asks for one; without this
                                     flag the environment variable QUIRE_API_KEY holds the key
)";

struct ServerAccess {
  TlsTexts tls_paths;
  std::string api_key_file;
};

// Adds the flags for TLS files and API key to `flags`. `access` must outlive `flags`.
void AddServerAccessFlags(ServerAccess& access, FlagTable& flags);

// Returns credentials for TLS, or for plain text if there are no TLS flags.
// Errors: kInvalidArgument for an incomplete set of TLS flags, and for files that cannot be used.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> CredentialsOf(const ServerAccess& access);

// Returns the API key for calls to this server; empty if there is no key. Errors: those of
// ReadFile; kInvalidArgument for text that is not a key, and for a key that would cross the network
// unencrypted.
absl::StatusOr<std::string> ApiKeyOf(const ServerAccess& access, const Address& server);

// A client's access to the admin address of a server.
struct AdminServer {
  std::shared_ptr<grpc::Channel> channel;  // connects when first used
  std::string api_key;
};

// Errors: those of CredentialsOf and ApiKeyOf; kInvalidArgument for a bad address.
absl::StatusOr<AdminServer> DialAdmin(const std::string& address, const ServerAccess& access);

// Adds the key to a call that has not begun. An empty key adds nothing.
void AddApiKey(const std::string& key, grpc::ClientContext& context);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_SERVER_ACCESS_H_
