#include "tests/support/rank_group.h"

#include <array>
#include <thread>
#include <utility>

#include "common/base/check.h"
#include "kernels/collective/shared_channel.h"

#include <sys/socket.h>

namespace quire {

std::string NameOf(Transport transport) {
  return transport == Transport::kSocket   ? "Socket"
         : transport == Transport::kShared ? "Shared"
                                           : "SharedSpinning";
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
  return PeerLink(sockets[end].Release(), std::move(channel));
}

LinkParts MakeLinkParts(Transport transport) {
  std::array<int, 2> sockets = {};
  QUIRE_CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()) == 0);
  LinkParts parts;
  for (size_t end = 0; end < sockets.size(); ++end) {
    parts.sockets[end] = FileDescriptor(sockets[end]);
  }
  if (transport != Transport::kSocket) {
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
