// Settings of the two kinds of connection. Worker: a scheduler and its workers, one long stream of
// steps, where a silent peer must be noticed within a second. Public: many clients of unknown kind.
// No end inflates what its peer has compressed: such a call is refused with UNIMPLEMENTED.
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

// Pings every 500 ms, also without calls; 64 MiB messages; no retries by the library, which would
// repeat a step behind the scheduler's back; a connection of its own, shared with no other channel.
grpc::ChannelArguments WorkerChannelArguments();

// A channel to a worker. Connects when first used.
std::shared_ptr<grpc::Channel> DialWorker(const Address& address,
                                          const std::shared_ptr<grpc::ChannelCredentials>&
                                              credentials = grpc::InsecureChannelCredentials());

// The worker's port: the same pings from this end, tolerant of the peer's; 64 MiB; 16 streams; 10 s
// to begin a connection; what all connections hold is at most 1 GiB.
void ConfigureWorkerServer(grpc::ServerBuilder& builder);

// The clients' port: 128 streams a connection, 4 MiB in, 1 MiB out, 16 KiB of metadata, pings every
// 20 s and from clients at most one every 2 s, idle connections closed after 5 min and old ones
// after 30 min plus the longest generation. 1 GiB and 32 threads for all of them.
void ConfigurePublicServer(grpc::ServerBuilder& builder);

// Notices a peer that is gone within 7 s, gives up an attempt to connect after 2 s, and makes the
// next one within a second or so. Holds a connection to each address of a name, and looks the name
// up again after 5 s while one of them does not answer. A connection of its own, shared with no
// other channel.
grpc::ChannelArguments PublicChannelArguments();

// A channel to the public port, for clients. Connects when first used.
std::shared_ptr<grpc::Channel> DialPublic(const Address& address,
                                          const std::shared_ptr<grpc::ChannelCredentials>&
                                              credentials = grpc::InsecureChannelCredentials());

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_CHANNEL_H_
