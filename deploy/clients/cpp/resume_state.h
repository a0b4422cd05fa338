// ResumeState decides how one request goes on when a stream breaks. It collects the part of the
// answer that has arrived. When an attempt (one stream) ends, it tells the client whether the
// request has ended, or when and at which server to make the next attempt.
//
// Thread safety: one thread at a time. Reads no clock: `now` is the time since the request began.
#ifndef QUIRE_DEPLOY_CLIENTS_CPP_RESUME_STATE_H_
#define QUIRE_DEPLOY_CLIENTS_CPP_RESUME_STATE_H_

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include "proto/v1/generation.pb.h"

#include "deploy/clients/cpp/retry_policy.h"

namespace quire {

class ResumeState {
 public:
  using Duration = std::chrono::nanoseconds;

  // num_servers: at least 1.
  ResumeState(const v1::GenerateRequest& request, const RetryPolicy& policy, size_t num_servers);

  // Begins an attempt, in which the client sends request() to server(). Returns the request's final
  // status instead of OK if the request has ended, for example by Cancel(), or if its timeout_ms
  // has passed (DEADLINE_EXCEEDED).
  grpc::Status BeginAttempt(Duration now);

  const v1::GenerateRequest& request() const { return request_; }
  size_t server() const { return server_; }

  // Adds a message of the attempt to the answer. Clears the message's `started` if an earlier
  // attempt has brought one, because the caller has seen that one. Returns false if the request was
  // cancelled, or if the message does not continue the answer (DATA_LOSS). The client must then
  // hide the message from the caller, cancel the stream and end the attempt.
  bool Take(v1::GenerateResponse* response);

  // Cancels the request: BeginAttempt and EndAttempt return CANCELLED from now on. Has no effect if
  // the request has ended already.
  void Cancel();

  struct Next {
    std::optional<grpc::Status> end;  // the end of the request; nullopt: an attempt follows
    Duration wait{0};                 // time until the next attempt
  };
  // Ends the attempt with its stream's status. If another attempt follows, server() changes to the
  // next server.
  Next EndAttempt(Duration now, const grpc::Status& status);

 private:
  grpc::Status TakeParts(v1::GenerateResponse* response);
  void Start(const v1::Started& started);
  grpc::Status CheckStarted(const v1::Started& started) const;
  grpc::Status TakePrompt(const v1::PromptLogprobs& prompt);
  grpc::Status TakeChunk(const v1::Chunk& chunk);
  grpc::Status TakeFinished(const v1::Finished& finished);
  // Returns nullptr if there is no such sequence, or the sequence has ended.
  v1::ResumedSequence* Find(int index);
  bool has_started() const { return resume_.sequences_size() > 0; }
  bool is_complete() const;
  // Returns the status for a client that gives up: the last failure, whose message now also tells
  // how long the client has waited.
  grpc::Status GivenUp(const grpc::Status& last) const;

  v1::GenerateRequest request_;
  const int num_sequences_;
  const size_t num_servers_;
  const Duration timeout_;
  Patience patience_;
  size_t server_ = 0;
  bool is_first_attempt_ = true;
  Duration attempt_begin_{0};
  bool attempt_brought_something_ = false;
  std::optional<grpc::Status> end_;  // set if the client itself ended the request
  v1::Resume resume_;                // the part of the answer that has arrived
  std::string request_id_;           // of `started`
};

// Sets the deadline and the API key of a call that sends `request`. The deadline is a second later
// than timeout_ms, so that a live server can end a late request itself and say why. Returns
// UNAUTHENTICATED if the key has a byte that is not visible ASCII: such a byte would make gRPC end
// the process.
grpc::Status PrepareCall(const v1::GenerateRequest& request,
                         const std::string& api_key,
                         grpc::ClientContext* context);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLIENTS_CPP_RESUME_STATE_H_
