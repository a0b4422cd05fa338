#include "tests/support/rank_group.h"

#include <array>
#include <thread>
#include <utility>

#include "common/base/check.h"
#include "kernels/collective/shared_channel.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace quire {
namespace {

std::array<FileDescriptor, 2> UnixPair() {
  std::array<int, 2> sockets = {};
  QUIRE_CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()) == 0);
  return {FileDescriptor(sockets[0]), FileDescriptor(sockets[1])};
}

// One thread drives both ends in turn, so neither end must block.
void ShakeHands(LinkParts& parts, int64_t max_records_per_key) {
  const TlsChannel::Settings settings = {.secret = "a secret of both ends",
                                         .identities = {"one to the other"},
                                         .max_records_per_key = max_records_per_key};
  parts.tls = {TlsChannel::Dial(parts.sockets[0].fd(), settings),
               TlsChannel::Accept(parts.sockets[1].fd(), settings)};
  bool is_done = false;
  while (!is_done) {
    is_done = true;
    for (const auto& end : parts.tls) {
      const TlsChannel::Progress progress = end->ShakeHands();
      QUIRE_CHECK(progress != TlsChannel::Progress::kFailed);
      is_done &= progress == TlsChannel::Progress::kDone;
    }
  }
}

}  // namespace

std::string NameOf(Transport transport) {
  switch (transport) {
    case Transport::kSocket:
      return "Socket";
    case Transport::kShared:
      return "Shared";
    case Transport::kSharedSpinning:
      return "SharedSpinning";
    case Transport::kTls:
      return "Tls";
    case Transport::kTcpInTheClear:
      return "TcpInTheClear";
  }
  return "";
}

std::array<FileDescriptor, 2> TcpPair() {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const FileDescriptor listener(::socket(AF_INET, SOCK_STREAM, 0));
  QUIRE_CHECK(::bind(listener.fd(), generic, length) == 0 && ::listen(listener.fd(), 1) == 0 &&
              ::getsockname(listener.fd(), generic, &length) == 0);
  std::array<FileDescriptor, 2> ends;
  ends[0] = FileDescriptor(::socket(AF_INET, SOCK_STREAM, 0));
  QUIRE_CHECK(::connect(ends[0].fd(), generic, length) == 0);
  ends[1] = FileDescriptor(::accept(listener.fd(), nullptr, nullptr));
  for (const FileDescriptor& end : ends) {
    const int on = 1;
    QUIRE_CHECK(::setsockopt(end.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
  }
  return ends;
}

PeerLink LinkParts::Take(size_t end, Transport transport) {
  std::unique_ptr<SharedChannel> channel;
  if (memory.is_open()) {
    channel =
        SharedChannel::Map(memory,
                           end == 0 ? SharedChannel::Side::kCreator : SharedChannel::Side::kOther,
                           transport == Transport::kSharedSpinning);
    QUIRE_CHECK(channel != nullptr);
  }
  return PeerLink(sockets[end].Release(), std::move(channel), std::move(tls[end]));
}

LinkParts MakeLinkParts(Transport transport, int64_t max_records_per_key) {
  const bool is_tcp = transport == Transport::kTls || transport == Transport::kTcpInTheClear;
  LinkParts parts;
  parts.sockets = is_tcp ? TcpPair() : UnixPair();
  if (transport == Transport::kTls) {
    ShakeHands(parts, max_records_per_key);
  }
  if (transport == Transport::kShared || transport == Transport::kSharedSpinning) {
    parts.memory = SharedChannel::CreateMemory();
    QUIRE_CHECK(parts.memory.is_open());
  }
  return parts;
}

std::pair<PeerLink, PeerLink> ConnectLinks(Transport transport) {
  LinkParts parts = MakeLinkParts(transport);
  PeerLink first = parts.Take(0, transport);
  return {std::move(first), parts.Take(1, transport)};
}

std::vector<std::shared_ptr<Communicator>> ConnectRanks(int32_t size, Transport transport) {
  std::vector<std::vector<PeerLink>> links(static_cast<size_t>(size));
  for (int32_t bit = 1; bit < size; bit *= 2) {
    for (int32_t rank = 0; rank < size; ++rank) {
      if ((rank & bit) == 0) {
        auto [low, high] = ConnectLinks(transport);
        links[static_cast<size_t>(rank)].push_back(std::move(low));
        links[static_cast<size_t>(rank | bit)].push_back(std::move(high));
      }
    }
  }
  std::vector<std::shared_ptr<Communicator>> group;
  for (int32_t rank = 0; rank < size; ++rank) {
    group.push_back(
        std::make_shared<Communicator>(rank, std::move(links[static_cast<size_t>(rank)])));
  }
  return group;
}

void OnAllRanks(int32_t size, const std::function<void(int32_t)>& fn) {
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&fn, rank] { fn(rank); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace quire
