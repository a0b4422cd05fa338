#include "kernels/collective/rank_address.h"

#include <netdb.h>

#include <algorithm>
#include <cstring>

#include "common/base/error.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>

namespace quire {

FileDescriptor RankAddress::NewSocket() const {
  FileDescriptor socket(::socket(storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.is_open()) {
    SetNoDelay(socket);
  }
  return socket;
}

std::optional<RankAddress> UnixAddress(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return std::nullopt;
  }
  std::copy(path.begin(), path.end(), address.sun_path);
  RankAddress result;
  std::memcpy(&result.storage, &address, sizeof(address));
  result.length = sizeof(address);
  return result;
}

std::vector<RankAddress> TcpAddresses(const std::string& host,
                                      const std::string& port,
                                      bool passive) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = passive ? AI_PASSIVE | AI_NUMERICSERV : AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) {
    return {};
  }
  std::vector<RankAddress> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    RankAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.length = entry->ai_addrlen;
  }
  ::freeaddrinfo(found);
  return addresses;
}

absl::StatusOr<std::vector<RankAddress>> ParseRendezvous(std::string_view text) {
  std::vector<RankAddress> addresses;
  if (text.starts_with(kUnixPrefix)) {
    if (const auto address = UnixAddress(std::string(text.substr(kUnixPrefix.size())))) {
      addresses.push_back(*address);
    }
  } else if (const size_t colon = text.rfind(':');
             text.starts_with(kTcpPrefix) && colon >= kTcpPrefix.size()) {
    const std::string host(text.substr(kTcpPrefix.size(), colon - kTcpPrefix.size()));
    addresses = TcpAddresses(host, std::string(text.substr(colon + 1)), /*passive=*/false);
  }
  if (addresses.empty()) {
    return BadRendezvous("the address cannot be resolved on this machine (" + std::string(text) +
                         ")");
  }
  return addresses;
}

absl::Status BadRendezvous(std::string_view rule) {
  return InvalidArgument("RENDEZVOUS", "rendezvous: " + std::string(rule));
}

void SetNoDelay(const FileDescriptor& socket) {
  const int on = 1;
  static_cast<void>(::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
}

}  // namespace quire
