#include "deploy/gateway/gateway_config.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_split.h"

#include "common/base/read_file.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/flags/flag_check.h"
#include "common/flags/port_check.h"
#include "common/wire/api_key.h"

ABSL_FLAG(std::string,
          model,
          "",
          "Hugging Face model directory or GGUF file of the schedulers, for its tokenizer and chat "
          "template. The flag name may be left out: quire_gateway MODEL.");
ABSL_FLAG(std::string,
          chat_template,
          "",
          "File with a chat template (Jinja). Empty: the template of the model.");
ABSL_FLAG(bool,
          allow_special_tokens_in_messages,
          false,
          "Turn names of special tokens in clients' messages into these tokens. A user can then "
          "forge the turns of a chat. false: they stay plain text.");
ABSL_FLAG(std::string,
          scheduler,
          "127.0.0.1:50051",
          "gRPC addresses of the schedulers, separated by commas: host:port or unix:/path. If one "
          "fails, streams go on at the next.");
ABSL_FLAG(std::string,
          scheduler_ssl_ca_certs,
          "",
          "Certificate authorities in PEM. A scheduler must present a certificate of one of them. "
          "Turns on TLS to schedulers.");
ABSL_FLAG(std::string,
          scheduler_ssl_certfile,
          "",
          "Certificate in PEM that the gateway presents to schedulers.");
ABSL_FLAG(std::string,
          scheduler_ssl_keyfile,
          "",
          "Private key of --scheduler-ssl-certfile in PEM, not encrypted.");
ABSL_FLAG(std::string,
          scheduler_api_key_file,
          "",
          "File with an API key for the gateway's own calls, if the schedulers ask for keys and "
          "--scheduler is not a Unix socket. Requests of clients carry the clients' keys.");
ABSL_FLAG(
    std::string,
    scheduler_http,
    "",
    "HTTP address of a scheduler, HOST:PORT. Its /metrics and /top are then served too, beside "
    "/v1. Empty: they are not.");
ABSL_FLAG(std::string, host, "127.0.0.1", "Address to listen on.");
ABSL_FLAG(int32_t, port, 8000, "Port of OpenAI's API. 0: any free port.");
ABSL_FLAG(std::string, http_host, "127.0.0.1", "Address that the metrics port listens on.");
ABSL_FLAG(int32_t,
          http_port,
          -1,
          "Port for metrics and health checks of the gateway itself, without TLS and keys. 0: any "
          "free port. -1: no such port.");
ABSL_FLAG(std::string,
          ssl_certfile,
          "",
          "Certificate of --port in PEM, with its chain. Turns on TLS. Files are read again when "
          "they change.");
ABSL_FLAG(std::string, ssl_keyfile, "", "Private key of --ssl-certfile in PEM, not encrypted.");
ABSL_FLAG(std::string,
          ssl_ca_certs,
          "",
          "Certificate authorities in PEM. Clients must present a certificate of one of them "
          "(mTLS). Empty: clients need no certificate.");
ABSL_FLAG(
    std::string,
    api_keys_file,
    "",
    "File with clients' API keys, one line each: SHA256HEX TENANT, as printed by `quire key`. "
    "/v1 then needs `Authorization: Bearer KEY`. The file is read again when it changes. "
    "Empty: no key is needed.");
ABSL_FLAG(std::string,
          admin_api_keys_file,
          "",
          "File with operators' API keys, in the format of --api-keys-file. With --api-keys-file, "
          "/metrics and /top answer to these keys alone.");
ABSL_FLAG(std::string,
          allowed_origins,
          "",
          "Origins whose pages may call this server (CORS), separated by commas, such as "
          "https://example.com; or *. Empty: none but the server's own page.");
ABSL_FLAG(int32_t, max_connections, 4096, "Maximum number of open HTTP connections.");
ABSL_FLAG(bool,
          allow_insecure_bind,
          false,
          "Allow listening without TLS on addresses that other machines can reach. For isolated "
          "networks only.");
ABSL_FLAG(int32_t,
          shutdown_timeout,
          25,
          "Seconds that running requests may take to finish after SIGTERM. A second signal ends "
          "them at once.");

namespace quire {
namespace {

constexpr int32_t kMaxConnections = 100'000;
constexpr int32_t kMaxShutdownSeconds = 86'400;
constexpr int64_t kMaxKeyFileBytes = 4096;

absl::StatusOr<Address> ReadAddress(std::string_view flag, std::string_view text) {
  absl::StatusOr<Address> address = ParseAddress(text);
  return address.ok() ? std::move(address) : FlagError(flag, ToStd(address.status().message()));
}

absl::StatusOr<Address> ListenAddress(std::string_view host_flag,
                                      const std::string& host,
                                      int32_t port,
                                      bool has_tls) {
  QUIRE_ASSIGN_OR_RETURN(Address address, HostAddress(host_flag, host, port));
  QUIRE_RETURN_IF_ERROR(
      CheckReachable(host_flag, address, has_tls, absl::GetFlag(FLAGS_allow_insecure_bind)));
  return address;
}

absl::Status SetModel(const std::vector<std::string>& positional, GatewayConfig& config) {
  config.model_path = absl::GetFlag(FLAGS_model);
  if (positional.size() > 1 || (!positional.empty() && !config.model_path.empty())) {
    return FlagError("model", "must be given once");
  }
  if (!positional.empty()) {
    config.model_path = positional.front();
  }
  if (config.model_path.empty()) {
    return FlagError("model", "must be given");
  }
  config.chat_template_file = absl::GetFlag(FLAGS_chat_template);
  config.allows_special_tokens = absl::GetFlag(FLAGS_allow_special_tokens_in_messages);
  return absl::OkStatus();
}

absl::Status SetSchedulers(GatewayConfig& config) {
  for (const absl::string_view text : absl::StrSplit(absl::GetFlag(FLAGS_scheduler), ',')) {
    QUIRE_ASSIGN_OR_RETURN(Address address, ReadAddress("scheduler", ToStd(text)));
    config.schedulers.push_back(std::move(address));
  }
  const TlsTexts paths = {.certificate = absl::GetFlag(FLAGS_scheduler_ssl_certfile),
                          .key = absl::GetFlag(FLAGS_scheduler_ssl_keyfile),
                          .authorities = absl::GetFlag(FLAGS_scheduler_ssl_ca_certs)};
  if (!paths.is_empty()) {
    if (paths.authorities.empty()) {
      return FlagError("scheduler-ssl-certfile", "needs --scheduler-ssl-ca-certs");
    }
    QUIRE_ASSIGN_OR_RETURN(config.scheduler_tls, TlsFiles::Open(paths));
  }
  config.forwards_api_keys =
      config.scheduler_tls != nullptr ||
      std::ranges::all_of(config.schedulers, [](const Address& a) { return a.is_local(); });
  if (const std::string file = absl::GetFlag(FLAGS_scheduler_api_key_file); !file.empty()) {
    if (!config.forwards_api_keys) {
      return FlagError("scheduler-api-key-file",
                       "the key would cross the network unencrypted; give "
                       "--scheduler-ssl-ca-certs");
    }
    QUIRE_ASSIGN_OR_RETURN(const std::string text, ReadFile(file, kMaxKeyFileBytes));
    const absl::StatusOr<std::string> key = ParseApiKey(text);
    if (!key.ok()) {
      return FlagError("scheduler-api-key-file", ToStd(key.status().message()));
    }
    config.scheduler_api_key = *key;
  }
  if (const std::string text = absl::GetFlag(FLAGS_scheduler_http); !text.empty()) {
    QUIRE_ASSIGN_OR_RETURN(config.scheduler_http, ReadAddress("scheduler-http", text));
  }
  return absl::OkStatus();
}

absl::Status SetListening(GatewayConfig& config) {
  const TlsTexts paths = {.certificate = absl::GetFlag(FLAGS_ssl_certfile),
                          .key = absl::GetFlag(FLAGS_ssl_keyfile),
                          .authorities = absl::GetFlag(FLAGS_ssl_ca_certs)};
  QUIRE_ASSIGN_OR_RETURN(config.tls, OpenServerTls(paths));
  const int32_t port = absl::GetFlag(FLAGS_port);
  QUIRE_RETURN_IF_ERROR(CheckFlagRange("port", port, 0, kMaxPort));
  QUIRE_ASSIGN_OR_RETURN(
      config.listen, ListenAddress("host", absl::GetFlag(FLAGS_host), port, config.tls != nullptr));
  const int32_t pages_port = absl::GetFlag(FLAGS_http_port);
  QUIRE_RETURN_IF_ERROR(CheckFlagRange("http-port", pages_port, -1, kMaxPort));
  if (pages_port >= 0) {
    QUIRE_ASSIGN_OR_RETURN(
        config.pages,
        ListenAddress("http-host", absl::GetFlag(FLAGS_http_host), pages_port, /*has_tls=*/false));
  }
  config.max_connections = absl::GetFlag(FLAGS_max_connections);
  QUIRE_RETURN_IF_ERROR(
      CheckFlagRange("max-connections", config.max_connections, 1, kMaxConnections));
  const int32_t seconds = absl::GetFlag(FLAGS_shutdown_timeout);
  QUIRE_RETURN_IF_ERROR(CheckFlagRange("shutdown-timeout", seconds, 0, kMaxShutdownSeconds));
  config.shutdown_timeout = absl::Seconds(seconds);
  return absl::OkStatus();
}

absl::Status SetAccess(GatewayConfig& config) {
  const bool has_tls = config.tls != nullptr;
  QUIRE_ASSIGN_OR_RETURN(
      config.api_keys,
      OpenApiKeys("api-keys-file", absl::GetFlag(FLAGS_api_keys_file), config.listen, has_tls));
  QUIRE_ASSIGN_OR_RETURN(
      config.admin_api_keys,
      OpenApiKeys(
          "admin-api-keys-file", absl::GetFlag(FLAGS_admin_api_keys_file), config.listen, has_tls));
  const std::string origins = absl::GetFlag(FLAGS_allowed_origins);
  config.allowed_origins = absl::StrSplit(origins, ',', absl::SkipEmpty());
  for (const std::string& origin : config.allowed_origins) {
    const bool is_origin =
        origin == "*" || (origin.find("://") != std::string::npos && !origin.ends_with('/'));
    if (!is_origin) {
      return FlagError("allowed-origins", "must be like https://example.com, without a path, or *");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GatewayConfig> GatewayConfigFromFlags(const std::vector<std::string>& positional) {
  GatewayConfig config;
  QUIRE_RETURN_IF_ERROR(SetModel(positional, config));
  QUIRE_RETURN_IF_ERROR(SetSchedulers(config));
  QUIRE_RETURN_IF_ERROR(SetListening(config));
  QUIRE_RETURN_IF_ERROR(SetAccess(config));
  return config;
}

}  // namespace quire
