// ResumingClient streams one answer, whatever happens to the server meanwhile: when a stream breaks
// it asks again, at the same server or at another one, for what it does not have yet. Its caller
// sees one stream, with the tokens, text and log-probabilities of an undisturbed run.
//
// What no server answered is asked for again: UNAVAILABLE, and without details INTERNAL or UNKNOWN,
// as a torn connection gives them, and CANCELLED, as gRPC in a server that closes does. So is what
// a full server refuses for the moment (RESOURCE_EXHAUSTED with google.rpc.RetryInfo), once the
// request is resumed: it had been accepted. Any other refusal is handed to the caller at once.
//
// Needs gRPC and the stubs made from proto/v1 and proto/google/rpc, and nothing else.
//
// Thread safety: safe from any thread; the stubs are.
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

// Returns arguments for channels to servers. A channel with them
//   - gives up an attempt to connect after 2 s, and makes the next one within a second or so;
//   - notices a server that is stopped or gone without a word within 7 s;
//   - holds a connection to each address of a name (round_robin), so that one that is silent or
//     closes connections, as a standby does, costs no wait: a standby that takes over has the next
//     attempt. Each such address is dialled once a second, and the name looked up every 5 s.
grpc::ChannelArguments ClientChannelArguments();

class ResumingClient {
 public:
  // channels: to replicas, at least one, made with ClientChannelArguments; each failure moves on to
  // the next.
  // api_key: where the servers ask for one, visible ASCII; empty: none. Send it over TLS alone,
  // unless the server is on this machine.
  explicit ResumingClient(const std::vector<std::shared_ptr<grpc::Channel>>& channels,
                          RetryPolicy policy = {},
                          std::string api_key = "");

  // Whether to go on: with false the request is cancelled.
  using OnResponse = std::function<bool(const v1::GenerateResponse&)>;

  // Returns when the answer is complete or cannot be. timeout_ms counts from this call on.
  // Errors: the server's refusal; the last failure once `policy` gives up, its message followed by
  // "(given up after N s without an answer)" or "(given up after waiting for a place for N s)";
  // CANCELLED by on_response or, with details, by an operator; DEADLINE_EXCEEDED; DATA_LOSS when a
  // server goes on with something else than was begun.
  grpc::Status Generate(const v1::GenerateRequest& request, const OnResponse& on_response) const;

 private:
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::vector<std::unique_ptr<v1::GenerationService::Stub>> stubs_;  // one for each
  RetryPolicy policy_;
  std::string api_key_;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLIENTS_CPP_RESUMING_CLIENT_H_
