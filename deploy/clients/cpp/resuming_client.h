// ResumingClient streams one answer, whatever happens to the server meanwhile. When a stream
// breaks, the client asks the same server or another one for the rest. The caller sees one stream,
// with the tokens, text and log-probabilities of an undisturbed run.
//
// The client retries after failures that are not a server's answer: UNAVAILABLE; INTERNAL and
// UNKNOWN without details (a torn connection); and CANCELLED without details (gRPC in a server that
// shuts down). If a full server refuses a resumed request (RESOURCE_EXHAUSTED with
// google.rpc.RetryInfo), the client retries too, because the request was accepted before. The
// caller gets any other refusal at once.
//
// Needs gRPC and the stubs made from proto/v1 and proto/google/rpc, and nothing else.
//
// Thread safety: safe from any thread, since the stubs are.
#ifndef QUIRE_DEPLOY_CLIENTS_CPP_RESUMING_CLIENT_H_
#define QUIRE_DEPLOY_CLIENTS_CPP_RESUMING_CLIENT_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/channel.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/status.h>

#include "proto/v1/generation.grpc.pb.h"

#include "deploy/clients/cpp/retry_policy.h"

namespace quire {

// Returns arguments for channels to servers. A channel with these arguments
//   - gives up an attempt to connect after 2 s, and makes the next attempt within a second or so;
//   - notices within 7 s that a server has stopped, or has died without closing its connections;
//   - holds a connection to each address of a host name (round_robin). So a request never waits
//     for an address that does not answer, or that closes connections, as a standby scheduler does.
//     gRPC dials such addresses once a second, and looks up the name every 5 s. So a standby that
//     takes over gets the next request;
//   - shares its connections with no other channel;
//   - buffers at most 64 KiB of a stream that the client does not read. Then the server waits.
grpc::ChannelArguments ClientChannelArguments();

class ResumingClient {
 public:
  // channels: one for each replica, at least one, made with ClientChannelArguments. After each
  // failure the client goes on with the next channel.
  // api_key: visible ASCII; empty if the servers ask for none. Pass a key only with channels over
  // TLS, unless the server is on this machine.
  explicit ResumingClient(const std::vector<std::shared_ptr<grpc::Channel>>& channels,
                          RetryPolicy policy = {},
                          std::string api_key = "");

  // Receives a message of the answer. Returns false to cancel the request.
  using OnResponse = std::function<bool(const v1::GenerateResponse&)>;

  // Blocks until the answer is complete or has failed. timeout_ms counts from this call on.
  // Errors: the server's refusal; CANCELLED if on_response returned false or, with error details,
  // if an operator cancelled; DEADLINE_EXCEEDED; DATA_LOSS if a server does not continue the answer
  // that was begun; UNAUTHENTICATED if the API key has a byte that is not visible ASCII. If
  // `policy` gives up, the last failure, with "(given up after N s without an answer)" or "(given
  // up after waiting for full servers for N s)" appended to its message.
  grpc::Status Generate(const v1::GenerateRequest& request, const OnResponse& on_response) const;

 private:
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::vector<std::unique_ptr<v1::GenerationService::Stub>> stubs_;  // one per channel
  RetryPolicy policy_;
  std::string api_key_;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLIENTS_CPP_RESUMING_CLIENT_H_
