// Messages and statuses of a server that answers Generate, for tests of the clients.
#ifndef QUIRE_TESTS_DEPLOY_GENERATE_MESSAGES_H_
#define QUIRE_TESTS_DEPLOY_GENERATE_MESSAGES_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <grpcpp/support/status.h>

#include "proto/google/rpc/error_details.pb.h"
#include "proto/google/rpc/status.pb.h"
#include "proto/v1/generation.pb.h"

namespace quire {

inline constexpr char kFingerprint[] = "cpu/bf16/0123";

inline v1::GenerateResponse Started(uint64_t seed = 7,
                                    const std::string& fingerprint = kFingerprint) {
  v1::GenerateResponse response;
  response.mutable_started()->set_request_id("made-by-the-server");
  response.mutable_started()->set_seed(seed);
  response.mutable_started()->set_determinism_fingerprint(fingerprint);
  response.mutable_started()->set_max_tokens(500);
  return response;
}

inline v1::GenerateResponse Tokens(int32_t first_position,
                                   std::vector<int32_t> ids,
                                   int32_t index = 0) {
  v1::GenerateResponse response;
  response.mutable_chunk()->set_index(index);
  response.mutable_chunk()->set_first_position(first_position);
  response.mutable_chunk()->mutable_token_ids()->Add(ids.begin(), ids.end());
  return response;
}

// Log-probabilities of num_tokens tokens of the prompt.
inline v1::GenerateResponse PromptScores(int32_t first_position, int num_tokens) {
  v1::GenerateResponse response;
  response.mutable_prompt_logprobs()->set_first_position(first_position);
  for (int i = 0; i < num_tokens; ++i) {
    response.mutable_prompt_logprobs()->add_logprobs()->set_logprob(-1.0F);
  }
  return response;
}

inline v1::GenerateResponse Finished(int32_t num_output_tokens, int32_t index = 0) {
  v1::GenerateResponse response;
  response.mutable_finished()->set_index(index);
  response.mutable_finished()->set_num_output_tokens(num_output_tokens);
  return response;
}

inline grpc::Status Unavailable() { return {grpc::StatusCode::UNAVAILABLE, "gone"}; }

// Returns a full server's refusal, which says when to ask again.
inline grpc::Status Full(std::chrono::seconds retry_delay = std::chrono::seconds(0)) {
  google::rpc::ErrorInfo error;
  error.set_reason("QUEUE_FULL");
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(retry_delay.count());
  google::rpc::Status details;
  details.add_details()->PackFrom(error);
  details.add_details()->PackFrom(retry);
  return {grpc::StatusCode::RESOURCE_EXHAUSTED, "full", details.SerializeAsString()};
}

// Returns the refusal of a server whose workers load.
inline grpc::Status Loading() {
  google::rpc::ErrorInfo error;
  error.set_reason("LOADING");
  google::rpc::Status details;
  details.add_details()->PackFrom(error);
  return {grpc::StatusCode::UNAVAILABLE, "loading", details.SerializeAsString()};
}

// Returns a refusal for good, without RetryInfo.
inline grpc::Status TooSmall() {
  google::rpc::ErrorInfo error;
  error.set_reason("EXCEEDS_CAPACITY");
  google::rpc::Status details;
  details.add_details()->PackFrom(error);
  return {grpc::StatusCode::RESOURCE_EXHAUSTED, "too small", details.SerializeAsString()};
}

}  // namespace quire

#endif  // QUIRE_TESTS_DEPLOY_GENERATE_MESSAGES_H_
