#include "kernels/collective/peer_listener.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "common/base/error.h"
#include "common/base/status_macros.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

namespace quire {
namespace {

constexpr int kBacklog = 64;
constexpr size_t kMaxStrangers = 64;
constexpr int kTickMillis = 5;
constexpr int64_t kRetryNanos = 20 * kNanosPerMilli;
constexpr std::string_view kUnixPrefix = "unix:";
constexpr std::string_view kTcpPrefix = "tcp:";
constexpr char kWelcome = 'w';

absl::Status CannotListen(const std::string& where) {
  return Error(absl::StatusCode::kUnavailable,
               "LISTEN",
               "ranks: cannot listen on " + where + " (errno " + std::to_string(errno) + ")");
}

absl::Status BadRendezvous(std::string_view rule) {
  return InvalidArgument("RENDEZVOUS", "rendezvous: " + std::string(rule));
}

// A socket that is closed unless it is released.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  ~Socket() { Close(); }
  Socket(Socket&& other) noexcept : fd_(other.Release()) {}
  Socket& operator=(Socket&& other) noexcept {
    Close();
    fd_ = other.Release();
    return *this;
  }

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Close() {
    if (fd_ >= 0) {
      ::close(Release());
    }
  }

 private:
  int fd_;
};

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
};

std::optional<SocketAddress> UnixAddress(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return std::nullopt;
  }
  std::copy(path.begin(), path.end(), address.sun_path);
  SocketAddress result;
  std::memcpy(&result.storage, &address, sizeof(address));
  result.length = sizeof(address);
  return result;
}

std::optional<SocketAddress> TcpAddress(const std::string& host,
                                        const std::string& port,
                                        bool passive) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = passive ? AI_PASSIVE | AI_NUMERICSERV : AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0 || found == nullptr) {
    return std::nullopt;
  }
  SocketAddress result;
  std::memcpy(&result.storage, found->ai_addr, found->ai_addrlen);
  result.length = found->ai_addrlen;
  ::freeaddrinfo(found);
  return result;
}

absl::StatusOr<SocketAddress> ParseRendezvous(std::string_view text) {
  std::optional<SocketAddress> address;
  if (text.starts_with(kUnixPrefix)) {
    address = UnixAddress(std::string(text.substr(kUnixPrefix.size())));
  } else if (const size_t colon = text.rfind(':');
             text.starts_with(kTcpPrefix) && colon >= kTcpPrefix.size()) {
    const std::string host(text.substr(kTcpPrefix.size(), colon - kTcpPrefix.size()));
    address = TcpAddress(host, std::string(text.substr(colon + 1)), /*passive=*/false);
  }
  if (!address.has_value()) {
    return BadRendezvous("no address of a rank");
  }
  return *address;
}

Socket NewSocket(const SocketAddress& address) {
  Socket socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.is_open() && address.family() != AF_UNIX) {
    const int on = 1;
    static_cast<void>(::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
  }
  return socket;
}

// The rest of what is expected has come; nothing: it may still come; false: it will not.
std::optional<bool> ReadRest(int fd, std::span<std::byte> expected, size_t* num_read) {
  while (*num_read < expected.size()) {
    const auto rest = expected.subspan(*num_read);
    const ssize_t came = ::recv(fd, rest.data(), rest.size(), MSG_DONTWAIT);
    if (came <= 0) {
      const bool may_come = came < 0 && (errno == EAGAIN || errno == EINTR);
      return may_come ? std::nullopt : std::optional(false);
    }
    *num_read += static_cast<size_t>(came);
  }
  return true;
}

bool SendAll(int fd, std::span<const std::byte> bytes) {
  // Fits the empty buffer of a new connection.
  return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(bytes.size());
}

}  // namespace

// Connect, while it goes on.
class PeerListener::Gathering {
 public:
  Gathering(int listener, const GroupMembership& group)
      : listener_(listener),
        group_(group),
        neighbours_(static_cast<size_t>(std::countr_zero(group.rendezvous.size()))) {}

  absl::Status Prepare() {
    for (size_t k = 0; k < neighbours_.size(); ++k) {
      Neighbour& neighbour = neighbours_[k];
      neighbour.rank = group_.rank ^ (1 << k);
      if (neighbour.rank > group_.rank) {
        QUIRE_ASSIGN_OR_RETURN(
            neighbour.address,
            ParseRendezvous(group_.rendezvous[static_cast<size_t>(neighbour.rank)]));
      }
    }
    return absl::OkStatus();
  }

  void Advance(Instant now) {
    for (Neighbour& neighbour : neighbours_) {
      if (neighbour.rank > group_.rank && !neighbour.is_there) {
        Dial(neighbour, now);
      }
    }
    AcceptStrangers();
    for (Stranger& stranger : strangers_) {
      Recognise(stranger);
    }
    std::erase_if(strangers_, [](const Stranger& s) { return !s.socket.is_open(); });
  }

  // Sleeps until something may have happened, or a moment.
  void Wait() const {
    std::vector<pollfd> fds = {{.fd = listener_, .events = POLLIN, .revents = 0}};
    for (const Neighbour& neighbour : neighbours_) {
      if (!neighbour.is_there && neighbour.socket.is_open() && neighbour.has_said_hello) {
        fds.push_back({.fd = neighbour.socket.fd(), .events = POLLIN, .revents = 0});
      }
    }
    for (const Stranger& stranger : strangers_) {
      fds.push_back({.fd = stranger.socket.fd(), .events = POLLIN, .revents = 0});
    }
    ::poll(fds.data(), fds.size(), kTickMillis);
  }

  // Those that are not there yet: the first. -1: all are.
  int32_t missing_rank() const {
    for (const Neighbour& neighbour : neighbours_) {
      if (!neighbour.is_there) {
        return neighbour.rank;
      }
    }
    return -1;
  }

  std::shared_ptr<Communicator> TakeCommunicator(
      std::shared_ptr<std::atomic<int32_t>> waits_for_rank) {
    std::vector<PeerLink> links;
    for (Neighbour& neighbour : neighbours_) {
      links.emplace_back(neighbour.socket.Release());
    }
    return std::make_shared<Communicator>(group_.rank, std::move(links), std::move(waits_for_rank));
  }

 private:
  struct Neighbour {
    int32_t rank = 0;
    SocketAddress address;  // of one that is dialled
    Socket socket;
    Instant dial_at = 0;
    bool has_said_hello = false;
    bool is_there = false;
  };

  struct Stranger {
    Socket socket;
    Hello hello;
    size_t num_read = 0;
  };

  Hello HelloTo(int32_t from, int32_t to) const {
    Hello hello = {.scheduler_incarnation = group_.scheduler_incarnation,
                   .group_epoch = group_.group_epoch,
                   .from_rank = from,
                   .to_rank = to};
    std::copy_n(group_.secret.begin(), kGroupSecretBytes, hello.secret.begin());
    return hello;
  }

  void Dial(Neighbour& neighbour, Instant now) {
    if (!neighbour.socket.is_open()) {
      if (now < neighbour.dial_at) {
        return;
      }
      neighbour.dial_at = now + kRetryNanos;
      neighbour.has_said_hello = false;
      neighbour.socket = NewSocket(neighbour.address);
      static_cast<void>(
          ::connect(neighbour.socket.fd(), neighbour.address.get(), neighbour.address.length));
    }
    if (!neighbour.has_said_hello) {
      pollfd ready = {.fd = neighbour.socket.fd(), .events = POLLOUT, .revents = 0};
      if (::poll(&ready, 1, 0) == 0) {
        return;
      }
      const Hello hello = HelloTo(group_.rank, neighbour.rank);
      if (!SendAll(neighbour.socket.fd(), std::as_bytes(std::span(&hello, 1)))) {
        neighbour.socket.Close();
        return;
      }
      neighbour.has_said_hello = true;
    }
    char welcome = 0;
    size_t num_read = 0;
    const auto read =
        ReadRest(neighbour.socket.fd(), std::as_writable_bytes(std::span(&welcome, 1)), &num_read);
    if (read.has_value() && (!*read || welcome != kWelcome)) {
      neighbour.socket.Close();  // it is not in this epoch yet, or is gone: again
    }
    neighbour.is_there = read.value_or(false) && welcome == kWelcome;
  }

  void AcceptStrangers() {
    for (;;) {
      Socket socket(::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket.is_open()) {
        return;
      }
      if (strangers_.size() == kMaxStrangers) {
        strangers_.erase(strangers_.begin());  // who is silent longest
      }
      const int on = 1;
      static_cast<void>(::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
      strangers_.push_back({.socket = std::move(socket), .hello = {}, .num_read = 0});
    }
  }

  // A stranger that says the right words is a neighbour.
  void Recognise(Stranger& stranger) {
    const auto read = ReadRest(stranger.socket.fd(),
                               std::as_writable_bytes(std::span(&stranger.hello, 1)),
                               &stranger.num_read);
    if (!read.has_value()) {
      return;
    }
    for (Neighbour& neighbour : neighbours_) {
      const Hello expected = HelloTo(neighbour.rank, group_.rank);
      const bool is_neighbour =
          *read && std::memcmp(&stranger.hello, &expected, sizeof(expected)) == 0;
      if (is_neighbour && neighbour.rank < group_.rank &&
          SendAll(stranger.socket.fd(), std::as_bytes(std::span(&kWelcome, 1)))) {
        // One that dialled again takes the place of its first attempt.
        neighbour.socket = std::move(stranger.socket);
        neighbour.is_there = true;
        return;
      }
    }
    stranger.socket.Close();
  }

  const int listener_;
  const GroupMembership& group_;
  std::vector<Neighbour> neighbours_;
  std::vector<Stranger> strangers_;
};

PeerListener::PeerListener(int socket, std::string rendezvous, std::string path)
    : socket_(socket),
      rendezvous_(std::move(rendezvous)),
      path_(std::move(path)),
      waits_for_rank_(std::make_shared<std::atomic<int32_t>>(-1)) {}

PeerListener::~PeerListener() {
  ::close(socket_);
  if (!path_.empty()) {
    ::unlink(path_.c_str());
  }
}

absl::StatusOr<std::unique_ptr<PeerListener>> PeerListener::AtPath(const std::string& path) {
  const std::optional<SocketAddress> address = UnixAddress(path);
  if (!address.has_value()) {
    errno = ENAMETOOLONG;
    return CannotListen(path);
  }
  ::unlink(path.c_str());
  Socket socket = NewSocket(*address);
  if (!socket.is_open() || ::bind(socket.fd(), address->get(), address->length) != 0 ||
      ::listen(socket.fd(), kBacklog) != 0) {
    return CannotListen(path);
  }
  return std::unique_ptr<PeerListener>(
      new PeerListener(socket.Release(), std::string(kUnixPrefix) + path, path));
}

absl::StatusOr<std::unique_ptr<PeerListener>> PeerListener::AtHost(const std::string& host,
                                                                   int32_t port,
                                                                   const std::string& public_host) {
  const auto address = TcpAddress(host, std::to_string(port), /*passive=*/true);
  if (!address.has_value()) {
    errno = EADDRNOTAVAIL;
    return CannotListen(host);
  }
  Socket socket = NewSocket(*address);
  const int on = 1;
  SocketAddress taken;
  taken.length = sizeof(taken.storage);
  if (!socket.is_open() ||
      ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::bind(socket.fd(), address->get(), address->length) != 0 ||
      ::listen(socket.fd(), kBacklog) != 0 ||
      ::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&taken.storage), &taken.length) != 0) {
    return CannotListen(host);
  }
  // The port is at the same place in both kinds of address.
  const auto taken_port = ntohs(reinterpret_cast<const sockaddr_in*>(&taken.storage)->sin_port);
  return std::unique_ptr<PeerListener>(
      new PeerListener(socket.Release(),
                       std::string(kTcpPrefix) + public_host + ":" + std::to_string(taken_port),
                       /*path=*/""));
}

absl::StatusOr<std::shared_ptr<Communicator>> PeerListener::Connect(const GroupMembership& group,
                                                                    int64_t timeout_ns) {
  const auto size = group.rendezvous.size();
  if (!std::has_single_bit(size) || group.rank < 0 || static_cast<size_t>(group.rank) >= size ||
      group.secret.size() != kGroupSecretBytes) {
    return BadRendezvous("not a group of 1, 2, 4, ... ranks with a secret");
  }
  const uint64_t num_aborts = num_aborts_.load();
  Gathering gathering(socket_, group);
  QUIRE_RETURN_IF_ERROR(gathering.Prepare());
  const Instant end = SteadyNow() + timeout_ns;
  for (;;) {
    const Instant now = SteadyNow();
    gathering.Advance(now);
    const int32_t missing = gathering.missing_rank();
    waits_for_rank_->store(missing, std::memory_order_relaxed);
    if (missing < 0) {
      return gathering.TakeCommunicator(waits_for_rank_);
    }
    const bool is_aborted = num_aborts_.load() != num_aborts;
    if (is_aborted || now >= end) {
      waits_for_rank_->store(-1, std::memory_order_relaxed);
      return Error(absl::StatusCode::kUnavailable,
                   "GROUP_BROKEN",
                   "rank " + std::to_string(missing) +
                       (is_aborted ? ": is not waited for any more" : ": does not come"));
    }
    gathering.Wait();
  }
}

}  // namespace quire
