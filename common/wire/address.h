// ParseAddress reads where to listen or to dial: "unix:/path/to/socket", "host:port" or
// "[ipv6]:port".
//
// Thread safety: free functions and a value type.
// Errors:        kInvalidArgument, reason ADDRESS.
#ifndef QUIRE_COMMON_WIRE_ADDRESS_H_
#define QUIRE_COMMON_WIRE_ADDRESS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace quire {

// sockaddr_un::sun_path less its terminating zero.
inline constexpr size_t kMaxUnixPathBytes = 107;

struct Address {
  std::string unix_path;  // set: a Unix socket; the rest is unused
  std::string host;       // without brackets
  int32_t port = 0;       // 0: any free one (to listen)

  bool is_unix() const { return !unix_path.empty(); }

  // Reached from this machine only: a Unix socket, "localhost", 127.0.0.0/8 or ::1.
  bool is_local() const;

  // What gRPC takes as a target and as a listening address, and ParseAddress reads back.
  std::string ToString() const;

  friend bool operator==(const Address&, const Address&) = default;
};

absl::StatusOr<Address> ParseAddress(std::string_view text);

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_ADDRESS_H_
