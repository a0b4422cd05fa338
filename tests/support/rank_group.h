// ConnectRanks makes the communicators of a group whose ranks are threads of one process.
#ifndef QUIRE_TESTS_SUPPORT_RANK_GROUP_H_
#define QUIRE_TESTS_SUPPORT_RANK_GROUP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/collective/communicator.h"

namespace quire {

// REQUIRES: size is a power of two.
std::vector<std::shared_ptr<Communicator>> ConnectRanks(int32_t size);

// Calls fn(rank) on a thread for each rank, and waits for all.
void OnAllRanks(int32_t size, const std::function<void(int32_t)>& fn);

}  // namespace quire

#endif  // QUIRE_TESTS_SUPPORT_RANK_GROUP_H_
