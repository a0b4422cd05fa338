#include "common/wire/listener_probe.h"

#include <netdb.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/clock.h"
#include "common/base/file_descriptor.h"
#include "common/base/log.h"

#include <sys/socket.h>
#include <sys/un.h>

namespace quire {
namespace {

// A Listener hands a connection to gRPC only after its client's first bytes: the preface of HTTP/2
// (RFC 9113, section 3.4) or the start of a TLS record (RFC 8446, section 5.1). The probe sends no
// more than these bytes, since further bytes would add errors to the server's log.
constexpr std::string_view kHttp2Hello = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr std::string_view kTlsHello = "\x16\x03\x01";

Address Dialled(Address address) {
  if (address.host == "0.0.0.0") {
    address.host = "127.0.0.1";
  } else if (address.host == "::") {
    address.host = "::1";
  }
  return address;
}

// Waits until the socket has one of the events of poll(2). Returns false after the deadline.
bool WaitFor(const FileDescriptor& socket, int16_t events, Instant deadline) {
  pollfd wait = {.fd = socket.fd(), .events = events, .revents = 0};
  const int64_t left_ms = std::max<int64_t>((deadline - SteadyNow()) / kNanosPerMilli, 0);
  return ::poll(&wait, 1, static_cast<int>(left_ms)) > 0;
}

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;
};

// Returns true if a server listens at the address and answers in time.
bool IsAnswered(const SocketAddress& address, std::string_view hello, Instant deadline) {
  const FileDescriptor socket(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) {
    return false;
  }
  const auto* const where = reinterpret_cast<const sockaddr*>(&address.storage);
  if (::connect(socket.fd(), where, address.length) != 0 &&
      (errno != EINPROGRESS || !WaitFor(socket, POLLOUT, deadline))) {
    return false;
  }
  int error = 0;
  socklen_t error_length = sizeof(error);
  ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &error_length);
  if (error != 0) {
    return false;  // connection refused: no server listens
  }
  // With or without TLS, a server answers an incomplete hello or closes the connection.
  static_cast<void>(::send(socket.fd(), hello.data(), hello.size(), MSG_NOSIGNAL));
  ::shutdown(socket.fd(), SHUT_WR);
  return WaitFor(socket, POLLIN, deadline);
}

// Returns all addresses of a name; empty if the name does not resolve.
std::vector<SocketAddress> AddressesOf(const Address& address) {
  if (address.is_unix()) {
    const std::string& path = address.unix_path;
    sockaddr_un where = {};
    where.sun_family = AF_UNIX;
    std::copy_n(path.begin(), std::min(path.size(), sizeof(where.sun_path) - 1), where.sun_path);
    std::vector<SocketAddress> addresses(1, {.length = sizeof(where)});
    std::memcpy(&addresses.front().storage, &where, sizeof(where));
    return addresses;
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = absl::StrCat(address.port);
  if (::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found) != 0) {
    return {};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    SocketAddress& where = addresses.emplace_back();
    where.length = entry->ai_addrlen;
    std::memcpy(&where.storage, entry->ai_addr, entry->ai_addrlen);
  }
  return addresses;
}

}  // namespace

ListenerProbe::ListenerProbe(const Address& address, bool is_tls, ListenerProbeTiming timing)
    : address_(Dialled(address)),
      hello_(is_tls ? kTlsHello : kHttp2Hello),
      timing_(timing),
      thread_([this] { Run(); }) {}

ListenerProbe::~ListenerProbe() {
  {
    const MutexLock lock(mutex_);
    is_stopped_ = true;
    stop_.NotifyOne();
  }
  thread_.join();
}

void ListenerProbe::Run() {
  int num_misses = 0;
  // The name is resolved only once, because the listening sockets stay bound to the first addresses
  // even if DNS changes.
  std::vector<SocketAddress> addresses;
  MutexLock lock(mutex_);
  for (;;) {
    const Instant dial_at = SteadyNow() + timing_.interval.count() * kNanosPerMilli;
    while (!is_stopped_ && stop_.WaitUntil(mutex_, dial_at)) {
    }
    if (is_stopped_) {
      return;
    }
    lock.Unlock();
    if (addresses.empty()) {
      addresses = AddressesOf(address_);
    }
    const Instant deadline = SteadyNow() + timing_.patience.count() * kNanosPerMilli;
    const bool is_answered = std::ranges::any_of(addresses, [&](const SocketAddress& address) {
      return IsAnswered(address, hello_, deadline);
    });
    num_misses = is_answered ? 0 : num_misses + 1;
    if (num_misses == timing_.num_misses) {
      LogError("the server does not answer on its own address", {{"address", address_.ToString()}});
    }
    is_deaf_.store(num_misses >= timing_.num_misses, std::memory_order_relaxed);
    lock.Lock();
  }
}

}  // namespace quire
