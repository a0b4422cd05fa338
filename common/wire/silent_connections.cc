#include "common/wire/silent_connections.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "common/base/check.h"

#include <sys/epoll.h>
#include <sys/socket.h>

namespace quire {
namespace {

constexpr size_t kMaxEvents = 64;  // upper bound on events of one epoll_wait
constexpr std::string_view kHttp2 = "PRI * HTTP/2.0";
constexpr std::string_view kTlsHandshake = "\x16\x03";

// Returns true if one text begins with the other. `said` holds the bytes that arrived so far.
bool BeginsLike(std::string_view word, std::string_view said) {
  const size_t length = std::min(word.size(), said.size());
  return word.substr(0, length) == said.substr(0, length);
}

// Returns true if the client's first bytes are HTTP/2 or TLS. The bytes stay in the socket, where
// gRPC reads them.
bool IsClient(const FileDescriptor& socket) {
  std::array<char, kHttp2.size()> buffer = {};
  const ssize_t num_bytes =
      ::recv(socket.fd(), buffer.data(), buffer.size(), MSG_PEEK | MSG_DONTWAIT);
  if (num_bytes <= 0) {
    return false;
  }
  const std::string_view said(buffer.data(), static_cast<size_t>(num_bytes));
  return BeginsLike(kHttp2, said) || BeginsLike(kTlsHandshake, said);
}

}  // namespace

SilentConnections::SilentConnections() : events_(::epoll_create1(EPOLL_CLOEXEC)) {}

void SilentConnections::Add(Connection connection) {
  if (connections_.size() == kMaxConnections) {
    EndOldest();
  }
  epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data = {.u64 = ++last_id_}};
  // If epoll_ctl fails for lack of memory, the connection is closed.
  if (::epoll_ctl(events_.fd(), EPOLL_CTL_ADD, connection.socket.fd(), &event) == 0) {
    connections_.emplace(last_id_, std::move(connection));
  }
}

void SilentConnections::EndOldest() {
  QUIRE_CHECK(!connections_.empty());
  connections_.erase(connections_.begin());  // closing a socket also removes it from the epoll
}

void SilentConnections::EndExpired(Instant now) {
  while (!connections_.empty() && connections_.begin()->second.since + kMaxSilenceNs <= now) {
    EndOldest();
  }
}

std::optional<Instant> SilentConnections::next_expiry() const {
  return connections_.empty() ? std::nullopt
                              : std::optional(connections_.begin()->second.since + kMaxSilenceNs);
}

std::vector<SilentConnections::Connection> SilentConnections::TakeSpeakers() {
  std::array<epoll_event, kMaxEvents> events = {};
  const int num_events =
      ::epoll_wait(events_.fd(), events.data(), static_cast<int>(events.size()), /*timeout=*/0);
  std::vector<Connection> speakers;
  for (int i = 0; i < num_events; ++i) {
    const auto found = connections_.find(events[static_cast<size_t>(i)].data.u64);
    QUIRE_CHECK(found != connections_.end());
    Connection connection = std::move(found->second);
    connections_.erase(found);
    if (IsClient(connection.socket)) {
      // From now on gRPC polls the socket.
      ::epoll_ctl(events_.fd(), EPOLL_CTL_DEL, connection.socket.fd(), nullptr);
      speakers.push_back(std::move(connection));
    }
  }
  return speakers;
}

}  // namespace quire
