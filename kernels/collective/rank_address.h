// RankAddress is where a rank is dialled or listens: a Unix socket, or TCP.
//
// Thread safety: a value type and free functions.
// Cost:          names are looked up, which may take as long as the resolver does.
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
  // Else TCP.
  bool is_unix() const { return storage.ss_family == AF_UNIX; }

  // Not open where the system has none.
  FileDescriptor NewSocket() const;
};

// None: too long for an address.
std::optional<RankAddress> UnixAddress(const std::string& path);

// All that the name has, in the order to try them; none: it cannot be found. `passive`: to listen.
std::vector<RankAddress> TcpAddresses(const std::string& host,
                                      const std::string& port,
                                      bool passive);

// Of "unix:/path" or "tcp:host:port", at least one. Errors: kInvalidArgument, reason RENDEZVOUS.
absl::StatusOr<std::vector<RankAddress>> ParseRendezvous(std::string_view text);

// A status of that kind.
absl::Status BadRendezvous(std::string_view rule);

// What is sent goes at once, however little it is. Nothing on a Unix socket.
void SendAtOnce(const FileDescriptor& socket);

}  // namespace quire

#endif  // QUIRE_KERNELS_COLLECTIVE_RANK_ADDRESS_H_
