// ConnectLinks and ConnectRanks connect ranks that are threads of one process, by any Transport.
#ifndef QUIRE_TESTS_SUPPORT_RANK_GROUP_H_
#define QUIRE_TESTS_SUPPORT_RANK_GROUP_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/file_descriptor.h"
#include "kernels/collective/communicator.h"
#include "kernels/collective/peer_link.h"
#include "kernels/collective/tls_channel.h"

namespace quire {

// kTcpInTheClear, TCP without encryption, is only for comparison: ranks in production never use it.
enum class Transport : uint8_t { kSocket, kShared, kSharedSpinning, kTls, kTcpInTheClear };
std::string NameOf(Transport transport);

// The parts from which the two ends of a link are made.
struct LinkParts {
  std::array<FileDescriptor, 2> sockets;
  FileDescriptor memory;                           // closed if there is no shared memory
  std::array<std::unique_ptr<TlsChannel>, 2> tls;  // after the handshake; null without TLS

  // Makes end 0 or 1 of the link. Call once for each end.
  PeerLink Take(size_t end, Transport transport);
};
LinkParts MakeLinkParts(Transport transport,
                        int64_t max_records_per_key = TlsChannel::kMaxRecordsPerKey);
// Returns the two ends of a TCP connection on loopback.
std::array<FileDescriptor, 2> TcpPair();
std::pair<PeerLink, PeerLink> ConnectLinks(Transport transport);

// Connects ranks that are threads of this process. REQUIRES: size is a power of two.
std::vector<std::shared_ptr<Communicator>> ConnectRanks(int32_t size,
                                                        Transport transport = Transport::kShared);

// Calls fn(rank) on a separate thread for each rank, and waits for all.
void OnAllRanks(int32_t size, const std::function<void(int32_t)>& fn);

}  // namespace quire

#endif  // QUIRE_TESTS_SUPPORT_RANK_GROUP_H_
