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
#include "common/base/file_descriptor.h"
#include "common/base/status_macros.h"
#include "common/base/unix_socket.h"
#include "common/base/usable_cpus.h"
#include "kernels/collective/fd_passing.h"
#include "kernels/collective/shared_channel.h"

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
// An attempt that nobody answers was lost on a way that is cut. Kernels before 6.5 repeat it after
// 1, 3 and 7 s, and a way that is mended meanwhile would lie idle until then.
constexpr int64_t kDialNanos = 500 * kNanosPerMilli;
constexpr std::string_view kUnixPrefix = "unix:";
constexpr std::string_view kTcpPrefix = "tcp:";
// What the higher rank says to the lower one.
constexpr char kWelcome = 'w';        // through the socket
constexpr char kWelcomeShared = 'm';  // through the memory that came with the hello

absl::Status CannotListen(const std::string& where) {
  return Error(absl::StatusCode::kUnavailable,
               "LISTEN",
               "ranks: cannot listen on " + where + " (errno " + std::to_string(errno) + ")");
}

absl::Status BadRendezvous(std::string_view rule) {
  return InvalidArgument("RENDEZVOUS", "rendezvous: " + std::string(rule));
}

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

// All that the name has, in the order to try them; none: it cannot be found.
std::vector<SocketAddress> TcpAddresses(const std::string& host,
                                        const std::string& port,
                                        bool passive) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = passive ? AI_PASSIVE | AI_NUMERICSERV : AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) {
    return {};
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.length = entry->ai_addrlen;
  }
  ::freeaddrinfo(found);
  return addresses;
}

absl::StatusOr<std::vector<SocketAddress>> ParseRendezvous(std::string_view text) {
  std::vector<SocketAddress> addresses;
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
    return BadRendezvous("no address that can be found here (" + std::string(text) + ")");
  }
  return addresses;
}

// Ranks that listen on Unix sockets are all on this host.
int32_t NumOnThisHost(const std::vector<std::string>& rendezvous) {
  return static_cast<int32_t>(
      std::count_if(rendezvous.begin(), rendezvous.end(), [](const std::string& text) {
        return text.starts_with(kUnixPrefix);
      }));
}

FileDescriptor NewSocket(const SocketAddress& address) {
  FileDescriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.is_open() && address.family() != AF_UNIX) {
    const int on = 1;
    static_cast<void>(::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
  }
  return socket;
}

// The rest of what is expected has come, and perhaps a file with it; nothing: it may still come;
// false: it will not.
std::optional<bool> ReadRest(int fd,
                             std::span<std::byte> expected,
                             size_t* num_read,
                             FileDescriptor* memory) {
  while (*num_read < expected.size()) {
    const auto rest = expected.subspan(*num_read);
    const ssize_t came = ReceiveWithFd(fd, rest, memory);
    if (came <= 0) {
      const bool may_come = came < 0 && (errno == EAGAIN || errno == EINTR);
      return may_come ? std::nullopt : std::optional(false);
    }
    *num_read += static_cast<size_t>(came);
  }
  return true;
}

bool SendAll(int fd, std::span<const std::byte> bytes, const FileDescriptor& memory = {}) {
  // Fits the empty buffer of a new connection.
  return SendWithFd(fd, bytes, memory.fd()) == static_cast<ssize_t>(bytes.size());
}

absl::Status OfRank(int32_t rank, const absl::Status& status) {
  return Error(status.code(),
               ReasonOf(status),
               "rank " + std::to_string(rank) + ": " + std::string(status.message()));
}

}  // namespace

// Connect, while it goes on.
class PeerListener::Gathering {
 public:
  Gathering(int listener, const GroupMembership& group, bool spins)
      : listener_(listener),
        group_(group),
        spins_(spins),
        neighbours_(static_cast<size_t>(std::countr_zero(group.rendezvous.size()))) {}

  absl::Status Prepare() {
    for (size_t k = 0; k < neighbours_.size(); ++k) {
      Neighbour& neighbour = neighbours_[k];
      neighbour.rank = group_.rank ^ (1 << k);
      if (neighbour.rank > group_.rank) {
        auto addresses = ParseRendezvous(group_.rendezvous[static_cast<size_t>(neighbour.rank)]);
        if (!addresses.ok()) {
          return OfRank(neighbour.rank, addresses.status());
        }
        neighbour.addresses = *std::move(addresses);
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
      links.emplace_back(neighbour.socket.Release(), std::move(neighbour.channel));
    }
    return std::make_shared<Communicator>(group_.rank, std::move(links), std::move(waits_for_rank));
  }

 private:
  struct Neighbour {
    int32_t rank = 0;
    std::vector<SocketAddress> addresses;  // of one that is dialled, each in its turn
    size_t num_dials = 0;
    FileDescriptor socket;
    std::unique_ptr<SharedChannel> channel;  // null: everything goes through the socket
    Instant dial_at = 0;
    Instant give_up_at = 0;  // unless it is connected by then
    bool has_said_hello = false;
    bool is_there = false;
  };

  struct Stranger {
    FileDescriptor socket;
    FileDescriptor memory;
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
      neighbour.give_up_at = now + kDialNanos;
      neighbour.has_said_hello = false;
      const SocketAddress& address =
          neighbour.addresses[neighbour.num_dials++ % neighbour.addresses.size()];
      neighbour.socket = NewSocket(address);
      static_cast<void>(::connect(neighbour.socket.fd(), address.get(), address.length));
    }
    if (!neighbour.has_said_hello) {
      pollfd ready = {.fd = neighbour.socket.fd(), .events = POLLOUT, .revents = 0};
      if (::poll(&ready, 1, 0) == 0) {
        if (now >= neighbour.give_up_at) {
          neighbour.socket.Close();
        }
        return;
      }
      const Hello hello = HelloTo(group_.rank, neighbour.rank);
      const FileDescriptor memory = MemoryFor(neighbour);
      if (!SendAll(neighbour.socket.fd(), std::as_bytes(std::span(&hello, 1)), memory)) {
        neighbour.socket.Close();
        return;
      }
      neighbour.has_said_hello = true;
    }
    char welcome = 0;
    size_t num_read = 0;
    FileDescriptor unwanted;
    const auto read = ReadRest(neighbour.socket.fd(),
                               std::as_writable_bytes(std::span(&welcome, 1)),
                               &num_read,
                               &unwanted);
    if (!read.has_value()) {
      return;
    }
    const bool is_shared = welcome == kWelcomeShared && neighbour.channel != nullptr;
    neighbour.is_there = *read && (is_shared || welcome == kWelcome);
    if (!neighbour.is_there) {
      neighbour.socket.Close();  // it is not in this epoch yet, or is gone: again
    }
    if (!is_shared) {
      neighbour.channel.reset();
    }
  }

  // New memory to share with it, if it is on this host; closed if there is none.
  FileDescriptor MemoryFor(Neighbour& neighbour) const {
    neighbour.channel.reset();
    FileDescriptor memory;
    if (neighbour.addresses.front().family() == AF_UNIX) {
      memory = SharedChannel::CreateMemory();
      neighbour.channel = SharedChannel::Map(memory, SharedChannel::Side::kCreator, spins_);
    }
    if (neighbour.channel == nullptr) {
      memory.Close();
    }
    return memory;
  }

  void AcceptStrangers() {
    for (;;) {
      FileDescriptor socket(::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket.is_open()) {
        return;
      }
      if (strangers_.size() == kMaxStrangers) {
        strangers_.erase(strangers_.begin());  // who is silent longest
      }
      const int on = 1;
      static_cast<void>(::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
      strangers_.push_back({.socket = std::move(socket), .memory = {}, .hello = {}, .num_read = 0});
    }
  }

  // A stranger that says the right words is a neighbour.
  void Recognise(Stranger& stranger) {
    const auto read = ReadRest(stranger.socket.fd(),
                               std::as_writable_bytes(std::span(&stranger.hello, 1)),
                               &stranger.num_read,
                               &stranger.memory);
    if (!read.has_value()) {
      return;
    }
    for (Neighbour& neighbour : neighbours_) {
      const Hello expected = HelloTo(neighbour.rank, group_.rank);
      const bool is_neighbour =
          *read && std::memcmp(&stranger.hello, &expected, sizeof(expected)) == 0;
      if (is_neighbour && neighbour.rank < group_.rank && Welcome(stranger, neighbour)) {
        return;
      }
    }
    stranger.socket.Close();
  }

  // One that dialled again takes the place of its first attempt.
  bool Welcome(Stranger& stranger, Neighbour& neighbour) const {
    std::unique_ptr<SharedChannel> channel;
    if (stranger.memory.is_open()) {
      channel = SharedChannel::Map(stranger.memory, SharedChannel::Side::kOther, spins_);
    }
    const char word = channel == nullptr ? kWelcome : kWelcomeShared;
    if (!SendAll(stranger.socket.fd(), std::as_bytes(std::span(&word, 1)))) {
      return false;
    }
    neighbour.socket = std::move(stranger.socket);
    neighbour.channel = std::move(channel);
    neighbour.is_there = true;
    return true;
  }

  const int listener_;
  const GroupMembership& group_;
  const bool spins_;
  std::vector<Neighbour> neighbours_;
  std::vector<Stranger> strangers_;
};

PeerListener::PeerListener(int socket, std::string rendezvous, std::string path, bool spins)
    : socket_(socket),
      rendezvous_(std::move(rendezvous)),
      path_(std::move(path)),
      spins_(spins),
      waits_for_rank_(std::make_shared<std::atomic<int32_t>>(-1)) {}

PeerListener::~PeerListener() {
  ::close(socket_);
  if (!path_.empty()) {
    ::unlink(path_.c_str());
  }
}

absl::StatusOr<std::unique_ptr<PeerListener>> PeerListener::AtPath(const std::string& path,
                                                                   int32_t num_sharers) {
  const std::optional<SocketAddress> address = UnixAddress(path);
  if (!address.has_value()) {
    errno = ENAMETOOLONG;
    return CannotListen(path);
  }
  if (IsListenedOn(path)) {
    errno = EADDRINUSE;
    return CannotListen(path);
  }
  ::unlink(path.c_str());  // left by a process that died
  FileDescriptor socket = NewSocket(*address);
  if (!socket.is_open() || ::bind(socket.fd(), address->get(), address->length) != 0 ||
      ::listen(socket.fd(), kBacklog) != 0) {
    return CannotListen(path);
  }
  return std::unique_ptr<PeerListener>(new PeerListener(socket.Release(),
                                                        std::string(kUnixPrefix) + path,
                                                        path,
                                                        /*spins=*/num_sharers <= UsableCpus()));
}

absl::StatusOr<std::unique_ptr<PeerListener>> PeerListener::AtHost(const std::string& host,
                                                                   int32_t port,
                                                                   const std::string& public_host) {
  const auto addresses = TcpAddresses(host, std::to_string(port), /*passive=*/true);
  if (addresses.empty()) {
    errno = EADDRNOTAVAIL;
    return CannotListen(host);
  }
  const SocketAddress& address = addresses.front();
  FileDescriptor socket = NewSocket(address);
  const int on = 1;
  SocketAddress taken;
  taken.length = sizeof(taken.storage);
  if (!socket.is_open() ||
      ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::bind(socket.fd(), address.get(), address.length) != 0 ||
      ::listen(socket.fd(), kBacklog) != 0 ||
      ::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&taken.storage), &taken.length) != 0) {
    return CannotListen(host);
  }
  // The port is at the same place in both kinds of address.
  const auto taken_port = ntohs(reinterpret_cast<const sockaddr_in*>(&taken.storage)->sin_port);
  return std::unique_ptr<PeerListener>(
      new PeerListener(socket.Release(),
                       std::string(kTcpPrefix) + public_host + ":" + std::to_string(taken_port),
                       /*path=*/"",
                       /*spins=*/false));
}

absl::StatusOr<std::shared_ptr<Communicator>> PeerListener::Connect(const GroupMembership& group,
                                                                    int64_t timeout_ns) {
  const auto size = group.rendezvous.size();
  if (!std::has_single_bit(size) || group.rank < 0 || static_cast<size_t>(group.rank) >= size ||
      group.secret.size() != kGroupSecretBytes) {
    return BadRendezvous("not a group of 1, 2, 4, ... ranks with a secret");
  }
  const uint64_t num_aborts = num_aborts_.load();
  const bool spins = spins_ && NumOnThisHost(group.rendezvous) <= UsableCpus();
  Gathering gathering(socket_, group, spins);
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
