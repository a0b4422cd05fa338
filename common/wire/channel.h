// Settings of the two kinds of connection. Worker: a scheduler and its workers, one long stream of
// steps, where a silent peer must be noticed within a second. Public: many untrusted clients.
// Neither end decompresses: a compressed call is refused with UNIMPLEMENTED.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_COMMON_WIRE_CHANNEL_H_
#define QUIRE_COMMON_WIRE_CHANNEL_H_

#include <memory>

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include "common/step/step_bytes.h"
#include "common/wire/address.h"

namespace quire {

inline constexpr int kWorkerMaxMessageBytes = kMaxStepBytes;
inline constexpr int kPublicMaxReceiveBytes = 4 << 20;
inline constexpr int kPublicMaxSendBytes = 1 << 20;

// Pings every 500 ms, even without calls; 64 MiB messages; no retries by the library, which would
// repeat a step behind the scheduler's back; a connection that no other channel shares.
grpc::ChannelArguments WorkerChannelArguments();

// A channel to a worker. Connects when first used.
std::shared_ptr<grpc::Channel> DialWorker(const Address& address,
                                          const std::shared_ptr<grpc::ChannelCredentials>&
                                              credentials = grpc::InsecureChannelCredentials());

// The worker's port: the same pings, tolerance for the peer's; 64 MiB messages; 16 streams;
// 10 s for a handshake; at most 1 GiB of memory for all connections together.
void ConfigureWorkerServer(grpc::ServerBuilder& builder);

// The clients' port: 128 streams a connection; messages of 4 MiB in, 1 MiB out; 16 KiB of metadata;
// pings every 20 s, and from clients at most one every 2 s. Connections are closed after 5 min
// idle, or after 30 min plus the longest generation. At most 1 GiB and 32 threads for all of them.
void ConfigurePublicServer(grpc::ServerBuilder& builder);

// Notices a dead peer within 7 s, gives up an attempt to connect after 2 s, and retries within
// about a second. Connects to each address of a name, and resolves the name again after 5 s while
// an address does not answer. No other channel shares its connections.
grpc::ChannelArguments PublicChannelArguments();

// A channel to the public port, for clients. Connects when first used.
std::shared_ptr<grpc::Channel> DialPublic(const Address& address,
                                          const std::shared_ptr<grpc::ChannelCredentials>&
                                              credentials = grpc::InsecureChannelCredentials());

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_CHANNEL_H_
