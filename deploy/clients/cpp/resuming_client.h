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

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/channel.h>
#include <grpcpp/support/status.h>

#include "proto/v1/generation.grpc.pb.h"

namespace quire {

// Waits double from first_wait to max_wait, each shortened by up to half at random; a full server
// may ask for more. An attempt that brought something starts all counts anew.
struct RetryPolicy {
  int max_retries = 12;  // in a row that no server answered: 20 to 40 s with these waits
  std::chrono::milliseconds first_wait{100};
  std::chrono::milliseconds max_wait{5000};
  // At the word of full servers, in all. What they ask for is cut to what is left of it.
  std::chrono::milliseconds max_wait_for_a_place{30 * 60 * 1000};
};

class ResumingClient {
 public:
  // Channels to replicas, at least one; each failure moves on to the next. They must not wait long
  // to connect again, and must notice a peer that is gone (README.md).
  // api_key: where the servers ask for one, visible ASCII; empty: none. Send it over TLS alone,
  // unless the server is on this machine.
  explicit ResumingClient(const std::vector<std::shared_ptr<grpc::Channel>>& channels,
                          RetryPolicy policy = {},
                          std::string api_key = "");

  // Whether to go on: with false the request is cancelled.
  using OnResponse = std::function<bool(const v1::GenerateResponse&)>;

  // Returns when the answer is complete or cannot be. timeout_ms counts from this call on.
  // Errors: the server's refusal; the last failure, after all retries, whose message ends with
  // "(given up after ...)"; CANCELLED, by on_response
  // or, with details, by an operator;
  // DEADLINE_EXCEEDED; DATA_LOSS when a server goes on with something else than was begun.
  grpc::Status Generate(const v1::GenerateRequest& request, const OnResponse& on_response) const;

 private:
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::vector<std::unique_ptr<v1::GenerationService::Stub>> stubs_;  // one for each
  RetryPolicy policy_;
  std::string api_key_;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLIENTS_CPP_RESUMING_CLIENT_H_
