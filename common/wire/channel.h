// Settings of the two kinds of gRPC connection. "Worker" connections join a scheduler and its
// workers. They carry one long stream of steps, and each end must notice within a second that the
// other end no longer answers. "Public" connections come from many untrusted clients. Neither end
// decompresses: a compressed call is refused with UNIMPLEMENTED.
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

// Returns settings of a channel to a worker: pings every 500 ms, even without calls; messages of up
// to 64 MiB; a connection that no other channel shares; no retries by gRPC, because a retry would
// repeat a step without the scheduler's knowledge.
grpc::ChannelArguments WorkerChannelArguments();

// Returns a channel to a worker. The channel connects when it is first used.
std::shared_ptr<grpc::Channel> DialWorker(const Address& address,
                                          const std::shared_ptr<grpc::ChannelCredentials>&
                                              credentials = grpc::InsecureChannelCredentials());

// Sets up the worker's port: pings every 500 ms; the scheduler's pings are tolerated; messages of
// up to 64 MiB; 16 streams a connection; 10 s for a handshake; at most 1 GiB of memory for all
// connections.
void ConfigureWorkerServer(grpc::ServerBuilder& builder);

// Sets up the clients' port: 128 streams a connection; messages of 4 MiB in, 1 MiB out; 16 KiB of
// metadata; a ping to each client every 20 s, and at most one ping from each client every 2 s. A
// connection is closed when it has been idle for 5 min. A connection that is 30 min old takes no
// new calls, and its running calls have 2 h to end. All connections together take at most 1 GiB of
// memory and 32 threads.
void ConfigurePublicServer(grpc::ServerBuilder& builder);

// Returns settings with which a client notices a dead peer within 7 s, gives up an attempt to
// connect after 2 s, and retries within about a second. The channel connects to each address of a
// name. While an address does not answer, the channel resolves the name again, at most every 5 s.
// No other channel shares the channel's connections. At most 64 KiB of an unread stream are
// buffered.
grpc::ChannelArguments PublicChannelArguments();

// Returns a client's channel to the public port. The channel connects when it is first used.
std::shared_ptr<grpc::Channel> DialPublic(const Address& address,
                                          const std::shared_ptr<grpc::ChannelCredentials>&
                                              credentials = grpc::InsecureChannelCredentials());

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_CHANNEL_H_
