// RankAddress is an address at which a rank listens: a Unix socket, or TCP.
//
// Thread safety: a value type; any thread may call the functions.
// Cost:          TcpAddresses and ParseRendezvous look up a host's name, which takes as long as the
//                system's resolver takes.
#ifndef QUIRE_KERNELS_COLLECTIVE_RANK_ADDRESS_H_
#define QUIRE_KERNELS_COLLECTIVE_RANK_ADDRESS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "common/base/file_descriptor.h"

#include <sys/socket.h>

namespace quire {

inline constexpr std::string_view kUnixPrefix = "unix:";
inline constexpr std::string_view kTcpPrefix = "tcp:";

struct RankAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  // Returns false for TCP.
  bool is_unix() const { return storage.ss_family == AF_UNIX; }

  // Returns a new non-blocking socket for the address. If the system refuses to make a socket, the
  // result is not open.
  FileDescriptor NewSocket() const;
};

// Returns nullopt if the path is empty or too long for an address.
std::optional<RankAddress> UnixAddress(const std::string& path);

// Returns all addresses of the host, in the order to try them; empty if its name cannot be
// resolved. `passive`: whether the addresses are for listening, not for dialing.
std::vector<RankAddress> TcpAddresses(const std::string& host,
                                      const std::string& port,
                                      bool passive);

// Returns the addresses of "unix:/path" or "tcp:host:port"; at least one address. Errors:
// kInvalidArgument, reason RENDEZVOUS.
absl::StatusOr<std::vector<RankAddress>> ParseRendezvous(std::string_view text);

// Returns an error with reason RENDEZVOUS, whose message ends with `rule`.
absl::Status BadRendezvous(std::string_view rule);

// Makes the socket send small writes at once (TCP_NODELAY). Does nothing to a Unix socket.
void SetNoDelay(const FileDescriptor& socket);

}  // namespace quire

#endif  // QUIRE_KERNELS_COLLECTIVE_RANK_ADDRESS_H_
