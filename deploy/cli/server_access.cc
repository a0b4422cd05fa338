#include "deploy/cli/server_access.h"

#include <stdlib.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/read_file.h"
#include "common/base/status_macros.h"
#include "common/wire/api_key.h"
#include "common/wire/channel.h"
#include "common/wire/credentials.h"

namespace quire {
namespace {

constexpr int64_t kMaxKeyFileBytes = 4096;

}  // namespace

void AddServerAccessFlags(ServerAccess& access, FlagTable& flags) {
  TlsTexts& paths = access.tls_paths;
  flags.Text("ssl-ca-certs", [&paths](const std::string& v) { paths.authorities = v; });
  flags.Text("ssl-certfile", [&paths](const std::string& v) { paths.certificate = v; });
  flags.Text("ssl-keyfile", [&paths](const std::string& v) { paths.key = v; });
  flags.Text("api-key-file", [&access](const std::string& v) { access.api_key_file = v; });
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

absl::StatusOr<std::string> ApiKeyOf(const ServerAccess& access, const Address& server) {
  const char* variable = ::getenv("QUIRE_API_KEY");  // NOLINT(concurrency-mt-unsafe): one thread
  std::string text = variable == nullptr ? "" : variable;
  if (access.api_key_file.empty() && text.empty()) {
    return "";
  }
  if (access.tls_paths.is_empty() && !server.is_local()) {
    return absl::InvalidArgumentError(
        "an API key may be sent to another machine only over TLS: add --ssl-ca-certs");
  }
  std::string source = "QUIRE_API_KEY";
  if (!access.api_key_file.empty()) {
    source = access.api_key_file;
    QUIRE_ASSIGN_OR_RETURN(text, ReadFile(source, kMaxKeyFileBytes));
  }
  absl::StatusOr<std::string> key = ParseApiKey(text);
  return key.ok() ? std::move(key)
                  : absl::InvalidArgumentError(absl::StrCat(source, ": ", key.status().message()));
}

absl::StatusOr<AdminServer> DialAdmin(const std::string& address, const ServerAccess& access) {
  QUIRE_ASSIGN_OR_RETURN(const Address parsed, ParseAddress(address));
  QUIRE_ASSIGN_OR_RETURN(const auto credentials, CredentialsOf(access));
  QUIRE_ASSIGN_OR_RETURN(std::string api_key, ApiKeyOf(access, parsed));
  return AdminServer{.channel = DialPublic(parsed, credentials), .api_key = std::move(api_key)};
}

void AddApiKey(const std::string& key, grpc::ClientContext& context) {
  if (!key.empty()) {
    context.AddMetadata(kAuthorization, BearerOf(key));
  }
}

}  // namespace quire
