#include "tests/support/rank_group.h"

#include <array>
#include <thread>
#include <utility>

#include "common/base/check.h"

#include <sys/socket.h>

namespace quire {

std::vector<std::shared_ptr<Communicator>> ConnectRanks(int32_t size) {
  std::vector<std::vector<PeerLink>> links(static_cast<size_t>(size));
  for (int32_t bit = 1; bit < size; bit *= 2) {
    for (int32_t rank = 0; rank < size; ++rank) {
      if ((rank & bit) == 0) {
        std::array<int, 2> sockets = {};
        QUIRE_CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()) == 0);
        links[static_cast<size_t>(rank)].emplace_back(sockets[0]);
        links[static_cast<size_t>(rank | bit)].emplace_back(sockets[1]);
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
