#include "kernels/collective/peer_listener.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>
#include <type_traits>
#include <utility>

#include "common/base/error.h"
#include "common/base/file_descriptor.h"
#include "common/base/status_macros.h"
#include "common/base/unix_socket.h"
#include "common/base/usable_cpus.h"
#include "kernels/collective/rank_address.h"
#include "kernels/collective/rank_connection.h"
#include "kernels/collective/shared_channel.h"
#include "kernels/collective/tls_channel.h"

#include <arpa/inet.h>
#include <sys/socket.h>

namespace quire {
namespace {

constexpr int kBacklog = 64;
constexpr size_t kMaxStrangers = 64;
constexpr int kTickMillis = 5;
constexpr int64_t kRetryNanos = 20 * kNanosPerMilli;
// Time after which a rank gives up an unanswered dial and dials again. Without this limit, ranks
// would still wait after the network is repaired: Linux before 6.5 repeats a dial only after 1, 3
// and 7 s.
constexpr int64_t kDialNanos = 500 * kNanosPerMilli;
// The higher rank's two answers to a hello. A hello is the dialing rank's first message.
constexpr char kWelcome = 'w';        // data goes through the socket
constexpr char kWelcomeShared = 'm';  // data goes through the memory that came with the hello

absl::Status CannotListen(const std::string& where) {
  return Error(absl::StatusCode::kUnavailable,
               "LISTEN",
               "ranks: cannot listen on " + where + ": " + std::generic_category().message(errno));
}

// Returns the number of ranks that listen on a Unix socket. All of them are on this host.
int32_t NumOnThisHost(const std::vector<std::string>& rendezvous) {
  return static_cast<int32_t>(
      std::count_if(rendezvous.begin(), rendezvous.end(), [](const std::string& text) {
        return text.starts_with(kUnixPrefix);
      }));
}

absl::Status OfRank(int32_t rank, const absl::Status& status) {
  return Error(status.code(),
               ReasonOf(status),
               "rank " + std::to_string(rank) + ": " + std::string(status.message()));
}

}  // namespace

bool PeerListener::Hello::IsSameAs(const Hello& other) const {
  static_assert(std::has_unique_object_representations_v<Hello>);
  const auto text_of = [](const Hello& hello) {
    return std::string_view(reinterpret_cast<const char*>(&hello), sizeof(hello));
  };
  return AreEqualSecrets(text_of(*this), text_of(other));
}

// The state of one call of Connect.
class PeerListener::Gathering {
 public:
  Gathering(int listener, bool over_tcp, const GroupMembership& group, bool spins)
      : listener_(listener),
        over_tcp_(over_tcp),
        group_(group),
        spins_(spins),
        neighbors_(static_cast<size_t>(std::countr_zero(group.rendezvous.size()))) {}

  absl::Status Prepare() {
    for (size_t k = 0; k < neighbors_.size(); ++k) {
      Neighbor& neighbor = neighbors_[k];
      neighbor.rank = group_.rank ^ (1 << k);
      if (neighbor.rank > group_.rank) {
        auto addresses = ParseRendezvous(group_.rendezvous[static_cast<size_t>(neighbor.rank)]);
        if (!addresses.ok()) {
          return OfRank(neighbor.rank, addresses.status());
        }
        neighbor.addresses = *std::move(addresses);
      }
    }
    return absl::OkStatus();
  }

  void Advance(Instant now) {
    for (Neighbor& neighbor : neighbors_) {
      if (neighbor.rank > group_.rank && !neighbor.is_there) {
        Dial(neighbor, now);
      }
    }
    AcceptStrangers();
    for (Stranger& stranger : strangers_) {
      Recognize(stranger);
    }
    std::erase_if(strangers_, [](const Stranger& s) { return !s.way.socket.is_open(); });
  }

  // Sleeps until a socket is ready, at most kTickMillis.
  void Wait() const {
    std::vector<pollfd> fds = {{.fd = listener_, .events = POLLIN, .revents = 0}};
    for (const Neighbor& neighbor : neighbors_) {
      if (!neighbor.is_there && neighbor.way.socket.is_open()) {
        const int16_t wanted = neighbor.is_connected ? POLLIN : POLLOUT;
        fds.push_back({.fd = neighbor.way.socket.fd(), .events = wanted, .revents = 0});
      }
    }
    for (const Stranger& stranger : strangers_) {
      fds.push_back({.fd = stranger.way.socket.fd(), .events = POLLIN, .revents = 0});
    }
    ::poll(fds.data(), fds.size(), kTickMillis);
  }

  // Returns the rank of the first neighbor that is not connected; -1: all are connected.
  int32_t missing_rank() const {
    for (const Neighbor& neighbor : neighbors_) {
      if (!neighbor.is_there) {
        return neighbor.rank;
      }
    }
    return -1;
  }

  std::shared_ptr<Communicator> TakeCommunicator(
      std::shared_ptr<std::atomic<int32_t>> waits_for_rank) {
    std::vector<PeerLink> links;
    for (Neighbor& neighbor : neighbors_) {
      links.emplace_back(
          neighbor.way.socket.Release(), std::move(neighbor.channel), std::move(neighbor.way.tls));
    }
    return std::make_shared<Communicator>(group_.rank, std::move(links), std::move(waits_for_rank));
  }

 private:
  struct Neighbor {
    int32_t rank = 0;
    std::vector<RankAddress> addresses;  // dialed in turn; empty if the neighbor dials this rank
    size_t num_dials = 0;
    RankConnection way;
    std::unique_ptr<SharedChannel> channel;  // null: all data goes through the socket
    Instant dial_at = 0;
    Instant give_up_at = 0;  // when to give up an unanswered dial
    bool is_connected = false;
    bool has_said_hello = false;
    bool is_there = false;
  };

  struct Stranger {
    RankConnection way;
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

  // Returns the TLS identity of a dialing rank. The identity names the epoch and both ends, so that
  // TLS refuses a rank of another epoch or pair.
  std::string IdentityOf(int32_t from, int32_t to) const {
    return "quire ranks, scheduler " + std::to_string(group_.scheduler_incarnation) + ", epoch " +
           std::to_string(group_.group_epoch) + ", from " + std::to_string(from) + " to " +
           std::to_string(to);
  }

  void Dial(Neighbor& neighbor, Instant now) const {
    if ((neighbor.way.socket.is_open() || BeginDial(neighbor, now)) &&
        (neighbor.is_connected || FinishDial(neighbor, now)) &&
        (neighbor.has_said_hello || SayHello(neighbor))) {
      HearWelcome(neighbor);
    }
  }

  static bool BeginDial(Neighbor& neighbor, Instant now) {
    if (now < neighbor.dial_at) {
      return false;
    }
    neighbor.dial_at = now + kRetryNanos;
    neighbor.give_up_at = now + kDialNanos;
    neighbor.is_connected = false;
    neighbor.has_said_hello = false;
    const RankAddress& address =
        neighbor.addresses[neighbor.num_dials++ % neighbor.addresses.size()];
    neighbor.way.socket = address.NewSocket();
    static_cast<void>(::connect(neighbor.way.socket.fd(), address.get(), address.length));
    return neighbor.way.socket.is_open();
  }

  bool FinishDial(Neighbor& neighbor, Instant now) const {
    pollfd ready = {.fd = neighbor.way.socket.fd(), .events = POLLOUT, .revents = 0};
    if (::poll(&ready, 1, 0) == 0) {
      if (now >= neighbor.give_up_at) {
        neighbor.way.Close();
      }
      return false;
    }
    neighbor.is_connected = true;
    if (!neighbor.addresses.front().is_unix()) {
      neighbor.way.tls = TlsChannel::Dial(
          neighbor.way.socket.fd(),
          {.secret = group_.secret, .identities = {IdentityOf(group_.rank, neighbor.rank)}});
    }
    return true;
  }

  bool SayHello(Neighbor& neighbor) const {
    const std::optional<bool> is_known = neighbor.way.ShakeHands();
    if (!is_known.has_value()) {
      return false;
    }
    const Hello hello = HelloTo(group_.rank, neighbor.rank);
    neighbor.has_said_hello =
        *is_known && neighbor.way.SendAll(std::as_bytes(std::span(&hello, 1)), MemoryFor(neighbor));
    if (!neighbor.has_said_hello) {
      // The peer is gone, not yet in this epoch, or not a rank. The next call of Dial tries again.
      neighbor.way.Close();
    }
    return neighbor.has_said_hello;
  }

  static void HearWelcome(Neighbor& neighbor) {
    char welcome = 0;
    size_t num_read = 0;
    FileDescriptor unwanted;
    const auto read =
        neighbor.way.ReadRest(std::as_writable_bytes(std::span(&welcome, 1)), &num_read, &unwanted);
    if (!read.has_value()) {
      return;
    }
    const bool is_shared = welcome == kWelcomeShared && neighbor.channel != nullptr;
    neighbor.is_there = *read && (is_shared || welcome == kWelcome);
    if (!neighbor.is_there) {
      neighbor.way.Close();  // so that the next call of Dial dials again
    }
    if (!is_shared) {
      neighbor.channel.reset();
    }
  }

  // Makes memory to share with a neighbor on this host, and maps it as neighbor.channel. The
  // returned file is not open if the two ranks cannot share memory.
  FileDescriptor MemoryFor(Neighbor& neighbor) const {
    neighbor.channel.reset();
    FileDescriptor memory;
    if (neighbor.addresses.front().is_unix()) {
      memory = SharedChannel::CreateMemory();
      neighbor.channel = SharedChannel::Map(memory, SharedChannel::Side::kCreator, spins_);
    }
    if (neighbor.channel == nullptr) {
      memory.Close();
    }
    return memory;
  }

  // Accepts at most kMaxStrangers connections in one call. Otherwise a crowd of connections could
  // replace even new strangers before Recognize reads from them.
  void AcceptStrangers() {
    for (size_t i = 0; i < kMaxStrangers; ++i) {
      RankConnection way = {.socket = FileDescriptor(::accept4(
                                listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)),
                            .tls = nullptr};
      if (!way.socket.is_open()) {
        return;
      }
      if (strangers_.size() == kMaxStrangers) {
        strangers_.erase(OldestUnproven());
      }
      if (over_tcp_) {
        SetNoDelay(way.socket);
        way.tls = TlsChannel::Accept(way.socket.fd(),
                                     {.secret = group_.secret, .identities = LowerIdentities()});
      }
      strangers_.push_back({.way = std::move(way), .memory = {}, .hello = {}, .num_read = 0});
    }
  }

  // Returns the oldest stranger that has not proved that it has the secret. If all have proved it,
  // returns the oldest stranger. So a crowd of strangers does not drive out a rank with a slow
  // handshake.
  std::vector<Stranger>::iterator OldestUnproven() {
    const auto found = std::ranges::find_if(strangers_, [](const Stranger& stranger) {
      return stranger.way.tls == nullptr || !stranger.way.tls->has_shown_secret();
    });
    return found == strangers_.end() ? strangers_.begin() : found;
  }

  std::vector<std::string> LowerIdentities() const {
    std::vector<std::string> identities;
    for (const Neighbor& neighbor : neighbors_) {
      if (neighbor.rank < group_.rank) {
        identities.push_back(IdentityOf(neighbor.rank, group_.rank));
      }
    }
    return identities;
  }

  // Reads the stranger's hello. If the hello is from a neighbor, moves the connection to that
  // neighbor; if the hello is wrong, closes the connection. Returns early while bytes are missing.
  void Recognize(Stranger& stranger) {
    std::optional<bool> read = stranger.way.ShakeHands();
    if (read.value_or(false)) {
      read = stranger.way.ReadRest(std::as_writable_bytes(std::span(&stranger.hello, 1)),
                                   &stranger.num_read,
                                   &stranger.memory);
    }
    if (!read.has_value()) {
      return;
    }
    for (Neighbor& neighbor : neighbors_) {
      const bool is_neighbor = *read && neighbor.rank < group_.rank &&
                               stranger.hello.IsSameAs(HelloTo(neighbor.rank, group_.rank));
      if (is_neighbor && Welcome(stranger, neighbor)) {
        return;
      }
    }
    stranger.way.Close();
  }

  // Answers the hello, and moves the stranger's connection to `neighbor`. Replaces an earlier
  // connection if the neighbor has dialed again. Returns false if the answer cannot be sent.
  bool Welcome(Stranger& stranger, Neighbor& neighbor) const {
    std::unique_ptr<SharedChannel> channel;
    if (stranger.memory.is_open()) {
      channel = SharedChannel::Map(stranger.memory, SharedChannel::Side::kOther, spins_);
    }
    const char word = channel == nullptr ? kWelcome : kWelcomeShared;
    if (!stranger.way.SendAll(std::as_bytes(std::span(&word, 1)))) {
      return false;
    }
    neighbor.way = std::move(stranger.way);
    neighbor.channel = std::move(channel);
    neighbor.is_there = true;
    return true;
  }

  const int listener_;
  const bool over_tcp_;
  const GroupMembership& group_;
  const bool spins_;
  std::vector<Neighbor> neighbors_;
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
  const std::optional<RankAddress> address = UnixAddress(path);
  if (!address.has_value()) {
    errno = ENAMETOOLONG;
    return CannotListen(path);
  }
  if (IsListenedOn(path)) {
    errno = EADDRINUSE;
    return CannotListen(path);
  }
  ::unlink(path.c_str());  // the file was left by a process that died
  FileDescriptor socket = address->NewSocket();
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
  if (!TlsChannel::IsPossible()) {
    return Error(absl::StatusCode::kUnavailable,
                 "LISTEN",
                 "ranks: the TLS library has no TLS 1.3 with X25519 and AES-128-GCM");
  }
  const auto addresses = TcpAddresses(host, std::to_string(port), /*passive=*/true);
  if (addresses.empty()) {
    errno = EADDRNOTAVAIL;
    return CannotListen(host);
  }
  const RankAddress& address = addresses.front();
  FileDescriptor socket = address.NewSocket();
  const int on = 1;
  RankAddress taken;
  taken.length = sizeof(taken.storage);
  if (!socket.is_open() ||
      ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::bind(socket.fd(), address.get(), address.length) != 0 ||
      ::listen(socket.fd(), kBacklog) != 0 ||
      ::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&taken.storage), &taken.length) != 0) {
    return CannotListen(host);
  }
  // The port has the same offset in IPv4 and IPv6 addresses.
  const auto taken_port = ntohs(reinterpret_cast<const sockaddr_in*>(&taken.storage)->sin_port);
  return std::unique_ptr<PeerListener>(
      new PeerListener(socket.Release(),
                       std::string(kTcpPrefix) + public_host + ":" + std::to_string(taken_port),
                       /*path=*/"",
                       /*spins=*/false));
}

absl::StatusOr<std::shared_ptr<Communicator>> PeerListener::Connect(const GroupMembership& group,
                                                                    int64_t timeout_ns,
                                                                    uint64_t num_aborts) {
  const auto size = group.rendezvous.size();
  if (!std::has_single_bit(size) || group.rank < 0 || static_cast<size_t>(group.rank) >= size ||
      group.secret.size() != kGroupSecretBytes) {
    return BadRendezvous("must name 1, 2, 4, ... ranks, this rank among them, and a secret");
  }
  const bool spins = spins_ && NumOnThisHost(group.rendezvous) <= UsableCpus();
  Gathering gathering(socket_, /*over_tcp=*/path_.empty(), group, spins);
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
      return Error(
          absl::StatusCode::kUnavailable,
          "GROUP_BROKEN",
          "rank " + std::to_string(missing) +
              (is_aborted ? ": connecting to it was aborted" : ": did not connect in time"));
    }
    gathering.Wait();
  }
}

}  // namespace quire
