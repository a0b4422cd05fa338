#include "common/wire/channel.h"

#include <grpc/compression.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/resource_quota.h>

namespace quire {
namespace {

// This keepalive detects, after about 1 s (measured), a peer that stopped without closing its
// connection.
constexpr int kWorkerKeepaliveMs = 500;
constexpr int kWorkerMinPingIntervalMs = 100;
constexpr int kWorkerMaxStreams = 16;
// gRPC uses its "minimum backoff" as the timeout of a connection attempt. A worker on a busy
// machine can take this long to accept the connection.
constexpr int kWorkerConnectTimeoutMs = 1'000;

constexpr int kPublicKeepaliveMs = 20'000;
constexpr int kPublicMinPingIntervalMs = 2'000;
constexpr int kPublicMaxPingStrikes = 2;
constexpr int kPublicMaxStreams = 128;
// Equal to the values in deploy/clients. A client notices a stopped server after 7 s. After 2 s the
// client gives up an attempt to connect.
constexpr int kClientKeepaliveMs = 4'000;
constexpr int kClientKeepaliveTimeoutMs = 3'000;
constexpr int kClientConnectTimeoutMs = 2'000;
constexpr int kClientMinReconnectMs = 200;
constexpr int kClientMaxReconnectMs = 1'000;
constexpr int kClientMinResolutionMs = 5'000;
// The server ends a connection with GOAWAY (too_many_pings) if pings come faster than the minimum
// interval. The factor 2 leaves room for delays: if a ping arrives late, the next seems too early.
static_assert(2 * kPublicMinPingIntervalMs <= kClientKeepaliveMs);
constexpr int kPublicMaxMetadataBytes = 16 << 10;
constexpr int kPublicMaxIdleMs = 5 * 60 * 1000;
constexpr int kPublicMaxAgeMs = 30 * 60 * 1000;
constexpr int kPublicAgeGraceMs = 2 * 60 * 60 * 1000;

// Time limit for the handshake of a connection: TLS, and the first bytes of HTTP/2. gRPC's default
// is two minutes.
constexpr int kHandshakeTimeoutMs = 10'000;

constexpr size_t kMaxServerBytes = size_t{1} << 30;
// Upper bound on threads for synchronous methods. Only gRPC's reflection service has synchronous
// methods; Quire's services use callbacks.
constexpr int kMaxServerThreads = 32;

// gRPC decompresses a whole message before it checks the message's size, so half a MiB may become
// half a GiB. The first setting turns decompression off. The other two make gRPC refuse a call that
// names a compression algorithm, with UNIMPLEMENTED.
void RefuseCompression(grpc::ServerBuilder& builder) {
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
}

void RefuseCompression(grpc::ChannelArguments& arguments) {
  arguments.SetInt(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  arguments.SetInt(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE);
}

// Bounds the memory of all connections together; other limits bound each connection or stream
// alone. If a message exceeds the quota, gRPC ends some client's stream, not always the sender's.
// Normal load stays far below the quota.
void LimitResources(grpc::ServerBuilder& builder) {
  grpc::ResourceQuota quota;
  quota.Resize(kMaxServerBytes).SetMaxThreads(kMaxServerThreads);
  builder.SetResourceQuota(quota);
}

}  // namespace

grpc::ChannelArguments WorkerChannelArguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kWorkerKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kWorkerKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kWorkerConnectTimeoutMs);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  RefuseCompression(arguments);
  arguments.SetMaxReceiveMessageSize(kWorkerMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kWorkerMaxMessageBytes);
  return arguments;
}

std::shared_ptr<grpc::Channel> DialWorker(
    const Address& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  return grpc::CreateCustomChannel(address.ToString(), credentials, WorkerChannelArguments());
}

void ConfigureWorkerServer(grpc::ServerBuilder& builder) {
  RefuseCompression(builder);
  builder.SetMaxReceiveMessageSize(kWorkerMaxMessageBytes);
  builder.SetMaxSendMessageSize(kWorkerMaxMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kWorkerKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kWorkerKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kWorkerMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kWorkerMaxStreams);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  LimitResources(builder);
}

void ConfigurePublicServer(grpc::ServerBuilder& builder) {
  RefuseCompression(builder);
  builder.SetMaxReceiveMessageSize(kPublicMaxReceiveBytes);
  builder.SetMaxSendMessageSize(kPublicMaxSendBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kPublicMaxStreams);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kPublicMaxMetadataBytes);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kPublicKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPublicKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kPublicMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, kPublicMaxPingStrikes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kPublicMaxIdleMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kPublicMaxAgeMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, kPublicAgeGraceMs);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  LimitResources(builder);
}

grpc::ChannelArguments PublicChannelArguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kClientKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kClientKeepaliveTimeoutMs);
  // Since gRPC 1.60 the keepalive timeout alone has no effect. Without this line, the default ping
  // timeout of 60 s would apply.
  arguments.SetInt("grpc.http2.ping_timeout_ms", kClientKeepaliveTimeoutMs);
  // 0: no limit on pings without data in between, since a client that reads a stream sends no data.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kClientConnectTimeoutMs);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kClientMinReconnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kClientMaxReconnectMs);
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, kClientMinResolutionMs);
  arguments.SetLoadBalancingPolicyName("round_robin");
  // Keeps a stream's flow-control window at 64 KiB. Otherwise gRPC would raise the window to 10 MiB
  // and more, and buffer that much of a stream that the client does not read.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  RefuseCompression(arguments);
  arguments.SetMaxReceiveMessageSize(kPublicMaxReceiveBytes);
  return arguments;
}

std::shared_ptr<grpc::Channel> DialPublic(
    const Address& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  return grpc::CreateCustomChannel(address.ToString(), credentials, PublicChannelArguments());
}

}  // namespace quire
