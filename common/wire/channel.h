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

// Pings every 500 ms, even without calls; messages of up to 64 MiB; no retries by the library,
// which would repeat a step without the scheduler's knowledge; a connection that no other channel
// shares.
grpc::ChannelArguments WorkerChannelArguments();

// Returns a channel to a worker, which connects when first used.
std::shared_ptr<grpc::Channel> DialWorker(const Address& address,
                                          const std::shared_ptr<grpc::ChannelCredentials>&
                                              credentials = grpc::InsecureChannelCredentials());

// Sets up the worker's port: pings every 500 ms; tolerates the scheduler's pings; messages of up to
// 64 MiB; 16 streams; 10 s for a handshake; at most 1 GiB of memory for all connections.
void ConfigureWorkerServer(grpc::ServerBuilder& builder);

// Sets up the clients' port: 128 streams a connection; messages of 4 MiB in, 1 MiB out; 16 KiB of
// metadata; pings every 20 s, and from clients at most one every 2 s. Connections are closed when
// idle for 5 min, or at the age of 30 min, with 2 h for calls to end. All connections together take
// at most 1 GiB of memory and 32 threads.
void ConfigurePublicServer(grpc::ServerBuilder& builder);

// Returns settings with which a client notices a dead peer within 7 s, gives up an attempt to
// connect after 2 s, and retries within about a second. The channel connects to each address of a
// name, and resolves the name again after 5 s while an address does not answer. No other channel
// shares its connections.
grpc::ChannelArguments PublicChannelArguments();

// Returns a channel to the public port, for clients, which connects when first used.
std::shared_ptr<grpc::Channel> DialPublic(const Address& address,
                                          const std::shared_ptr<grpc::ChannelCredentials>&
                                              credentials = grpc::InsecureChannelCredentials());

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_CHANNEL_H_
