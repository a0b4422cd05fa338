#include "common/wire/listener.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/file_limit.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/unix_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

namespace quire {
namespace {

// Descriptors that connections must leave to the rest of the process: logs, streams to workers, the
// HTTP port.
constexpr int kReservedFiles = 64;
constexpr int kBacklog = 1024;
// Upper bound on the connections accepted from one socket before the other sockets and stop_ are
// polled.
constexpr int kMaxAcceptsInARow = 64;
constexpr int kNoFilesPauseMillis = 100;
constexpr int64_t kRefusalLogIntervalNs = 10 * kNanosPerSecond;

// Returns `limit` minus `reserve`, but at least three quarters of `limit`, so that a low limit
// still allows connections.
int Without(int reserve, int limit) { return limit - std::min(reserve, limit / 4); }

int MaxOpenFiles(int num_files_spared) {
  const int of_all_ports = std::min(Listener::kMaxOpenFiles, Without(kReservedFiles, FileLimit()));
  return Without(num_files_spared, of_all_ports);
}

absl::Status CannotListen(const Address& address) {
  return Error(absl::StatusCode::kUnavailable,
               "LISTEN",
               absl::StrCat("cannot listen on ",
                            address.ToString(),
                            " (",
                            std::generic_category().message(errno),
                            ")"));
}

void SetOption(const FileDescriptor& socket, int level, int option, int value) {
  static_cast<void>(::setsockopt(socket.fd(), level, option, &value, sizeof(value)));
}

// Returns a listening socket, or a closed descriptor with the cause in errno.
FileDescriptor ListenAt(const sockaddr* address, socklen_t length, bool takes_ipv4_too) {
  FileDescriptor socket(
      ::socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) {
    return socket;
  }
  if (address->sa_family != AF_UNIX) {
    SetOption(socket, SOL_SOCKET, SO_REUSEADDR, 1);  // allows bind while old connections linger
    SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1);  // accepted connections inherit this option
  }
  if (address->sa_family == AF_INET6) {
    SetOption(socket, IPPROTO_IPV6, IPV6_V6ONLY, takes_ipv4_too ? 0 : 1);
  }
  if (::bind(socket.fd(), address, length) != 0 || ::listen(socket.fd(), kBacklog) != 0) {
    return {};
  }
  return socket;
}

// Returns the port field of an IPv4 or IPv6 address.
in_port_t& PortOf(sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                       : reinterpret_cast<sockaddr_in&>(address).sin_port;
}

int32_t BoundPort(const FileDescriptor& socket) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  return ::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length) == 0
             ? ntohs(PortOf(address))
             : 0;
}

// Returns true at most once in kRefusalLogIntervalNs: a refused client may reconnect at once, and a
// line for each refusal would flood the log.
bool IsTimeToLog(Instant* logged_at) {
  const Instant now = SteadyNow();
  const bool is_time = now - *logged_at >= kRefusalLogIntervalNs;
  *logged_at = is_time ? now : *logged_at;
  return is_time;
}

}  // namespace

Listener::Listener(Address address, int num_files_spared)
    : address_(std::move(address)),
      max_open_files_(MaxOpenFiles(num_files_spared)),
      files_logged_at_(SteadyNow() - kRefusalLogIntervalNs),
      users_logged_at_(files_logged_at_) {}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Bind(const Address& address,
                                                         int num_files_spared) {
  std::unique_ptr<Listener> listener(new Listener(address, num_files_spared));
  QUIRE_RETURN_IF_ERROR(address.is_unix() ? listener->BindUnix() : listener->BindHost());
  listener->stop_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!listener->stop_.is_open() || !listener->silent_.events().is_open()) {
    return CannotListen(address);
  }
  return listener;
}

Listener::~Listener() { Stop(); }

absl::Status Listener::BindUnix() {
  sockaddr_un where = {};
  where.sun_family = AF_UNIX;
  if (address_.unix_path.size() >= sizeof(where.sun_path)) {
    errno = ENAMETOOLONG;
    return CannotListen(address_);
  }
  std::copy(address_.unix_path.begin(), address_.unix_path.end(), where.sun_path);
  // Replacing a live process's socket would leave both processes unreachable when this process
  // ends.
  if (IsListenedOn(address_.unix_path)) {
    errno = EADDRINUSE;
    return CannotListen(address_);
  }
  // No process listens, so a dead process left the socket file at this path.
  std::error_code error;
  if (std::filesystem::is_socket(address_.unix_path, error)) {
    std::filesystem::remove(address_.unix_path, error);
  }
  FileDescriptor socket =
      ListenAt(reinterpret_cast<const sockaddr*>(&where), sizeof(where), /*takes_ipv4_too=*/false);
  if (!socket.is_open()) {
    return CannotListen(address_);
  }
  sockets_.push_back(std::move(socket));
  return absl::OkStatus();
}

absl::Status Listener::BindHost() {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address_.host.c_str(), nullptr, &hints, &found) != 0) {
    errno = EADDRNOTAVAIL;
    return CannotListen(address_);
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
  for (; found != nullptr; found = found->ai_next) {
    sockaddr_storage where = {};
    std::memcpy(&where, found->ai_addr, found->ai_addrlen);
    PortOf(where) = htons(static_cast<uint16_t>(address_.port));
    FileDescriptor socket = ListenAt(
        reinterpret_cast<const sockaddr*>(&where), found->ai_addrlen, address_.host == "::");
    if (socket.is_open()) {
      address_.port = BoundPort(socket);  // the other addresses get the same port
      sockets_.push_back(std::move(socket));
    } else if (errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT) {
      // The two errors above mean that this machine lacks the address, which is then skipped.
      return CannotListen(address_);
    }
  }
  return sockets_.empty() ? CannotListen(address_) : absl::OkStatus();
}

void Listener::AddTo(grpc::ServerBuilder& builder,
                     const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  credentials_ = credentials;
  using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  acceptor_ = builder.experimental().AddExternalConnectionAcceptor(Type::FROM_FD, credentials);
}

void Listener::Start() {
  QUIRE_CHECK(acceptor_ != nullptr);
  thread_ = std::thread([this] { Run(); });
}

void Listener::SetRefusing(bool is_refusing) {
  if (is_refusing_.exchange(is_refusing) != is_refusing && is_refusing) {
    EndConnections();
  }
}

// gRPC has no call to close its connections and does not report their descriptors. So this function
// tries every descriptor and finds the connections by their local port, which all TCP connections
// of this listener share.
void Listener::EndConnections() const {
  for (int fd = 0; fd < max_open_files_; ++fd) {
    sockaddr_storage address = {};
    socklen_t length = sizeof(address);
    int is_listening = 1;
    socklen_t size = sizeof(is_listening);
    const bool is_connection =
        ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &size) == 0 &&
        is_listening == 0 && ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
    const bool is_inet = address.ss_family == AF_INET || address.ss_family == AF_INET6;
    if (is_connection && is_inet && ntohs(PortOf(address)) == address_.port) {
      ::shutdown(fd, SHUT_RDWR);
    }
  }
}

void Listener::Stop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    QUIRE_CHECK(::write(stop_.fd(), &one, sizeof(one)) == sizeof(one));
    thread_.join();
  }
  if (!sockets_.empty() && address_.is_unix()) {
    std::error_code error;
    std::filesystem::remove(address_.unix_path, error);
  }
  sockets_.clear();
  while (!silent_.empty()) {
    silent_.EndOldest();  // after Stop no server reads from these connections
  }
}

void Listener::Run() {
  std::vector<pollfd> waits = {{.fd = stop_.fd(), .events = POLLIN, .revents = 0},
                               {.fd = silent_.events().fd(), .events = POLLIN, .revents = 0}};
  for (const FileDescriptor& socket : sockets_) {
    waits.push_back({.fd = socket.fd(), .events = POLLIN, .revents = 0});
  }
  while (waits[0].revents == 0) {
    ::poll(waits.data(), waits.size(), PollTimeoutMillis());
    for (const FileDescriptor& socket : sockets_) {
      AcceptFrom(socket);
    }
    HandOverSpeakers();
    silent_.EndExpired(SteadyNow());
  }
}

// Returns the milliseconds until the oldest silent connection (no byte from its client) expires.
// Returns -1, with which poll waits without limit, if no connection is silent.
int Listener::PollTimeoutMillis() const {
  const std::optional<Instant> expiry = silent_.next_expiry();
  if (!expiry.has_value()) {
    return -1;
  }
  return static_cast<int>(std::max<int64_t>(0, (*expiry - SteadyNow()) / kNanosPerMilli + 1));
}

void Listener::AcceptFrom(const FileDescriptor& socket) {
  for (int i = 0; i < kMaxAcceptsInARow; ++i) {
    FileDescriptor connection(
        ::accept4(socket.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!connection.is_open()) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        WaitForFiles();
      }
      // Other errors usually mean that no connection waits or that the client has left. poll
      // reports the next connection.
      return;
    }
    if (is_refusing_.load()) {
      continue;
    }
    if (connection.fd() >= max_open_files_) {
      // Without this call, MoveBelowBound could end connections that have already received bytes.
      HandOverSpeakers();
      connection = MoveBelowBound(std::move(connection));
      if (!connection.is_open()) {
        continue;
      }
    }
    if (address_.is_unix() && !IsOwnUsers(connection.fd())) {
      RefuseUser();
      continue;
    }
    silent_.Add(
        {.socket = std::move(connection), .listener_fd = socket.fd(), .since = SteadyNow()});
  }
}

// Ends silent connections (no byte from the client yet) until the new connection can move to a
// freed descriptor below max_open_files_. If another thread takes a freed descriptor first, one
// more silent connection is ended.
FileDescriptor Listener::MoveBelowBound(FileDescriptor connection) {
  while (!silent_.empty()) {
    silent_.EndOldest();
    FileDescriptor moved(::fcntl(connection.fd(), F_DUPFD_CLOEXEC, 0));
    if (moved.is_open() && moved.fd() < max_open_files_) {
      return moved;
    }
  }
  Refuse(std::move(connection));
  return {};
}

void Listener::HandOverSpeakers() {
  for (SilentConnections::Connection& speaker : silent_.TakeSpeakers()) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
    parameters.listener_fd = speaker.listener_fd;
    parameters.fd = speaker.socket.Release();
    acceptor_->HandleNewConnection(&parameters);
  }
}

void Listener::Refuse(FileDescriptor connection) {
  connection.Close();
  if (IsTimeToLog(&files_logged_at_)) {
    LogWarning("connections are refused: too many files are open",
               {{"address", address_.ToString()}, {"limit", absl::StrCat(max_open_files_)}});
  }
}

void Listener::RefuseUser() {
  if (IsTimeToLog(&users_logged_at_)) {
    LogWarning("connections of another user are refused", {{"address", address_.ToString()}});
  }
}

// Pauses accepting for kNoFilesPauseMillis, or until Stop. Called after accept has failed because
// memory is short or all descriptors, kReservedFiles included, are in use. During the pause,
// clients wait in the kernel's accept queue.
void Listener::WaitForFiles() {
  if (IsTimeToLog(&files_logged_at_)) {
    LogWarning(
        "clients wait: no file descriptor or memory is left for their connections",
        {{"address", address_.ToString()}, {"cause", std::generic_category().message(errno)}});
  }
  pollfd wait = {.fd = stop_.fd(), .events = POLLIN, .revents = 0};
  ::poll(&wait, 1, kNoFilesPauseMillis);
}

}  // namespace quire
