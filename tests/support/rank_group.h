// ConnectLinks and ConnectRanks connect ranks that are threads of one process, in each of the ways
// in which ranks can be connected.
#ifndef QUIRE_TESTS_SUPPORT_RANK_GROUP_H_
#define QUIRE_TESTS_SUPPORT_RANK_GROUP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/file_descriptor.h"
#include "kernels/collective/communicator.h"
#include "kernels/collective/peer_link.h"

namespace quire {

enum class Transport : uint8_t { kSocket, kShared, kSharedSpinning };
std::string NameOf(Transport transport);

// What two ends are made of.
struct LinkParts {
  FileDescriptor sockets[2];  // NOLINT(modernize-avoid-c-arrays)
  FileDescriptor memory;      // not open: none

  // Of end 0 or 1, once.
  PeerLink Take(size_t end, Transport transport);
};
LinkParts MakeLinkParts(Transport transport);
std::pair<PeerLink, PeerLink> ConnectLinks(Transport transport);

// REQUIRES: size is a power of two.
std::vector<std::shared_ptr<Communicator>> ConnectRanks(int32_t size,
                                                        Transport transport = Transport::kShared);

// Calls fn(rank) on a thread for each rank, and waits for all.
void OnAllRanks(int32_t size, const std::function<void(int32_t)>& fn);

}  // namespace quire

#endif  // QUIRE_TESTS_SUPPORT_RANK_GROUP_H_
