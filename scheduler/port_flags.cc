#include "scheduler/port_flags.h"

#include <string>
#include <string_view>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/flags/flag_check.h"
#include "common/flags/port_check.h"

ABSL_FLAG(std::string, host, "127.0.0.1", "Address to listen on for gRPC.");
ABSL_FLAG(int32_t, port, 50051, "gRPC port. 0: any free port.");
ABSL_FLAG(std::string,
          http_host,
          "127.0.0.1",
          "Address to listen on for metrics and health checks. Only operators should reach it, "
          "because metrics show how often prompts were found in the prefix cache.");
ABSL_FLAG(int32_t, http_port, 8000, "Port for metrics and health checks. 0: any free port.");
ABSL_FLAG(std::string,
          admin_address,
          "",
          "Address of the port for operators' calls (pinned prefixes): unix:/path or host:port. "
          "Port 0: any free port. Empty: no such port.");
ABSL_FLAG(
    std::string,
    local_address,
    "",
    "Unix socket (unix:/path) on which the gRPC port also listens, for programs of this user: "
    "without TLS, and with no API key for GetServerInfo. Empty: none.");
ABSL_FLAG(std::string,
          ssl_certfile,
          "",
          "Certificate of the gRPC and admin ports in PEM, with its chain. Turns on TLS. Files are "
          "read again when they change.");
ABSL_FLAG(std::string, ssl_keyfile, "", "Private key of --ssl-certfile in PEM, not encrypted.");
ABSL_FLAG(std::string,
          ssl_ca_certs,
          "",
          "Certificate authorities in PEM. Clients must present a certificate of one of them "
          "(mTLS). Empty: clients need no certificate.");
ABSL_FLAG(std::string,
          worker_ssl_certfile,
          "",
          "Certificate in PEM that the scheduler presents to workers. Turns on TLS to workers.");
ABSL_FLAG(std::string,
          worker_ssl_keyfile,
          "",
          "Private key of --worker-ssl-certfile in PEM, not encrypted.");
ABSL_FLAG(std::string,
          worker_ssl_ca_certs,
          "",
          "Certificate authorities in PEM. A worker must present a certificate of one of them that "
          "is valid for its host in --workers.");
ABSL_FLAG(std::string,
          api_keys_file,
          "",
          "File with clients' API keys, one line each: SHA256HEX TENANT, as printed by `quire "
          "key`. Calls to the gRPC port then need a key, except health checks. The file is read "
          "again when it changes. Empty: calls need no key.");
ABSL_FLAG(std::string,
          admin_api_keys_file,
          "",
          "File with operators' API keys for calls to --admin-address, in the format of "
          "--api-keys-file. The log names the TENANT that pins or unpins a prefix.");
ABSL_FLAG(bool,
          enable_reflection,
          false,
          "Turn on gRPC server reflection (grpc.reflection.v1alpha) on the gRPC port.");
ABSL_FLAG(bool,
          allow_insecure_bind,
          false,
          "Allow listening without TLS on addresses that other machines can reach. For isolated "
          "networks only.");

namespace quire {
namespace {

// Opens and reads the TLS files. Called first, since the other Set functions need config->tls.
absl::Status SetTls(SchedulerConfig* config) {
  const TlsTexts own = {.certificate = absl::GetFlag(FLAGS_ssl_certfile),
                        .key = absl::GetFlag(FLAGS_ssl_keyfile),
                        .authorities = absl::GetFlag(FLAGS_ssl_ca_certs)};
  QUIRE_ASSIGN_OR_RETURN(config->tls, OpenServerTls(own));
  const TlsTexts of_links = {.certificate = absl::GetFlag(FLAGS_worker_ssl_certfile),
                             .key = absl::GetFlag(FLAGS_worker_ssl_keyfile),
                             .authorities = absl::GetFlag(FLAGS_worker_ssl_ca_certs)};
  if (of_links.is_empty()) {
    return absl::OkStatus();
  }
  if (of_links.certificate.empty() || of_links.authorities.empty()) {
    return FlagError("worker-ssl-certfile",
                     "must be given together with --worker-ssl-keyfile and --worker-ssl-ca-certs");
  }
  QUIRE_ASSIGN_OR_RETURN(config->worker_tls, TlsFiles::Open(of_links));
  return absl::OkStatus();
}

absl::Status CheckHost(std::string_view flag, const std::string& host, bool has_tls) {
  QUIRE_ASSIGN_OR_RETURN(const Address address, HostAddress(flag, host, /*port=*/0));
  return CheckReachable(flag, address, has_tls, absl::GetFlag(FLAGS_allow_insecure_bind));
}

absl::Status SetListening(SchedulerConfig* config) {
  config->host = absl::GetFlag(FLAGS_host);
  config->http_host = absl::GetFlag(FLAGS_http_host);
  config->port = absl::GetFlag(FLAGS_port);
  config->http_port = absl::GetFlag(FLAGS_http_port);
  config->has_reflection = absl::GetFlag(FLAGS_enable_reflection);
  QUIRE_RETURN_IF_ERROR(CheckFlagRange("port", config->port, 0, kMaxPort));
  QUIRE_RETURN_IF_ERROR(CheckFlagRange("http-port", config->http_port, 0, kMaxPort));
  QUIRE_RETURN_IF_ERROR(CheckHost("host", config->host, config->tls != nullptr));
  return CheckHost("http-host", config->http_host, /*has_tls=*/false);
}

absl::Status SetLocalAddress(SchedulerConfig* config) {
  const std::string text = absl::GetFlag(FLAGS_local_address);
  if (text.empty()) {
    return absl::OkStatus();
  }
  const absl::StatusOr<Address> address = ParseAddress(text);
  if (!address.ok() || !address->is_unix()) {
    return FlagError("local-address", "must be a Unix socket: unix:/path");
  }
  config->local = *address;
  return absl::OkStatus();
}

absl::Status SetAdmin(SchedulerConfig* config) {
  const std::string text = absl::GetFlag(FLAGS_admin_address);
  if (text.empty()) {
    return absl::OkStatus();
  }
  const absl::StatusOr<Address> address = ParseAddress(text);
  if (!address.ok()) {
    return FlagError("admin-address", ToStd(address.status().message()));
  }
  const bool authenticates_callers =
      config->tls != nullptr &&
      (config->tls->has_authorities() || !absl::GetFlag(FLAGS_admin_api_keys_file).empty());
  if (!address->is_local() && !authenticates_callers && !absl::GetFlag(FLAGS_allow_insecure_bind)) {
    return FlagError(
        "admin-address",
        "other machines can reach this address without authentication; give --ssl-ca-certs or "
        "--admin-api-keys-file with TLS, or --allow-insecure-bind if the network is isolated");
  }
  config->admin = *address;
  return absl::OkStatus();
}

// REQUIRES: SetListening and SetAdmin have been called.
absl::Status SetApiKeys(SchedulerConfig* config) {
  QUIRE_ASSIGN_OR_RETURN(const Address address, HostAddress("host", config->host, /*port=*/0));
  const bool has_tls = config->tls != nullptr;
  QUIRE_ASSIGN_OR_RETURN(
      config->api_keys,
      OpenApiKeys("api-keys-file", absl::GetFlag(FLAGS_api_keys_file), address, has_tls));
  const std::string admin_file = absl::GetFlag(FLAGS_admin_api_keys_file);
  if (!admin_file.empty() && !config->admin.has_value()) {
    return FlagError("admin-api-keys-file", "needs --admin-address");
  }
  QUIRE_ASSIGN_OR_RETURN(
      config->admin_api_keys,
      OpenApiKeys("admin-api-keys-file", admin_file, config->admin.value_or(address), has_tls));
  return absl::OkStatus();
}

}  // namespace

absl::Status SetPorts(SchedulerConfig* config) {
  QUIRE_RETURN_IF_ERROR(SetTls(config));
  QUIRE_RETURN_IF_ERROR(SetListening(config));
  QUIRE_RETURN_IF_ERROR(SetLocalAddress(config));
  QUIRE_RETURN_IF_ERROR(SetAdmin(config));
  return SetApiKeys(config);
}

}  // namespace quire
