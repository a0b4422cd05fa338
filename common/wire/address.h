// ParseAddress reads an address to listen on or to dial: "unix:/path/to/socket", "host:port" or
// "[ipv6]:port".
//
// Thread safety: any thread.
// Errors:        kInvalidArgument, reason ADDRESS.
#ifndef QUIRE_COMMON_WIRE_ADDRESS_H_
#define QUIRE_COMMON_WIRE_ADDRESS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace quire {

// Size of sockaddr_un::sun_path less its terminating zero.
inline constexpr size_t kMaxUnixPathBytes = 107;

struct Address {
  std::string unix_path;  // path of a Unix socket; if set, host and port are unused
  std::string host;       // name or IP address, without brackets
  int32_t port = 0;       // 0: any free port, for listening

  bool is_unix() const { return !unix_path.empty(); }

  // Returns true if only this machine can reach the address: a Unix socket, "localhost",
  // 127.0.0.0/8 or ::1.
  bool is_local() const;

  // Returns text that ParseAddress reads, and that gRPC accepts as a target or listening address.
  std::string ToString() const;

  friend bool operator==(const Address&, const Address&) = default;
};

absl::StatusOr<Address> ParseAddress(std::string_view text);

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_ADDRESS_H_
