// Checks the flags that describe a server's port: address, TLS files and API keys.
//
// Thread safety: free functions, safe from any thread.
// Errors:        kInvalidArgument, reason FLAG, as FlagError; further errors at each function.
#ifndef QUIRE_COMMON_FLAGS_PORT_CHECK_H_
#define QUIRE_COMMON_FLAGS_PORT_CHECK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/wire/address.h"
#include "common/wire/api_keys.h"
#include "common/wire/tls_files.h"

namespace quire {

inline constexpr int32_t kMaxPort = 65535;

// Returns the address of --host and --port. `host`: a name or an IP address without brackets.
absl::StatusOr<Address> HostAddress(std::string_view host_flag,
                                    const std::string& host,
                                    int32_t port);

// Refuses an address that other machines can reach, unless the port has TLS or
// --allow-insecure-bind is given.
absl::Status CheckReachable(std::string_view flag,
                            const Address& address,
                            bool has_tls,
                            bool allows_insecure_bind);

// Opens --ssl-certfile, --ssl-keyfile and --ssl-ca-certs. Returns null if none is given. Errors: as
// TlsFiles::Open.
absl::StatusOr<std::shared_ptr<TlsFiles>> OpenServerTls(const TlsTexts& paths);

// Opens a file of API keys. Returns null if `file` is empty. Refuses keys on an address that other
// machines reach without TLS: an eavesdropper would read the keys. Errors: as ApiKeys::Open.
absl::StatusOr<std::shared_ptr<ApiKeys>> OpenApiKeys(std::string_view flag,
                                                     const std::string& file,
                                                     const Address& address,
                                                     bool has_tls);

}  // namespace quire

#endif  // QUIRE_COMMON_FLAGS_PORT_CHECK_H_
