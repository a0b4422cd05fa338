#include "common/flags/port_check.h"

#include "common/flags/flag_check.h"

namespace quire {

absl::StatusOr<Address> HostAddress(std::string_view host_flag,
                                    const std::string& host,
                                    int32_t port) {
  if (host.empty()) {
    return FlagError(host_flag, "must be an address or a host name");
  }
  return Address{.unix_path = "", .host = host, .port = port};
}

absl::Status CheckReachable(std::string_view flag,
                            const Address& address,
                            bool has_tls,
                            bool allows_insecure_bind) {
  if (address.is_local() || has_tls || allows_insecure_bind) {
    return absl::OkStatus();
  }
  return FlagError(flag,
                   "other machines can reach this address without encryption; give --ssl-certfile "
                   "(not for --http-host), or --allow-insecure-bind if the network is isolated");
}

absl::StatusOr<std::shared_ptr<TlsFiles>> OpenServerTls(const TlsTexts& paths) {
  if (paths.is_empty()) {
    return nullptr;
  }
  if (!paths.authorities.empty() && paths.certificate.empty()) {
    return FlagError("ssl-ca-certs", "needs --ssl-certfile and --ssl-keyfile");
  }
  return TlsFiles::Open(paths);
}

absl::StatusOr<std::shared_ptr<ApiKeys>> OpenApiKeys(std::string_view flag,
                                                     const std::string& file,
                                                     const Address& address,
                                                     bool has_tls) {
  if (file.empty()) {
    return nullptr;
  }
  if (!address.is_local() && !has_tls) {
    return FlagError(flag,
                     "keys would cross the network unencrypted; give --ssl-certfile and "
                     "--ssl-keyfile, or listen on the loopback address or a Unix socket");
  }
  return ApiKeys::Open(file);
}

}  // namespace quire
