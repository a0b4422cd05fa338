// Generation answers one HTTP request for completions. It starts a stream of the scheduler for each
// prompt, and sends the results to the client, as one JSON text or as server-sent events.
//
// The HTTP status is chosen when the first event, the whole answer or an error is available. So a
// request that the scheduler refuses has the status of the refusal. An answer that fails after its
// first event ends with an event that has `error`. While the HTTP client reads slowly, Generation
// asks the scheduler for no further message. If the client leaves, the streams are cancelled.
//
// Thread safety: Start: any thread. Then the resuming client's thread brings messages, and the HTTP
//                server's thread continues or cancels streams.
#ifndef QUIRE_DEPLOY_GATEWAY_GENERATION_H_
#define QUIRE_DEPLOY_GATEWAY_GENERATION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include <grpcpp/support/status.h>

#include "proto/v1/generation.pb.h"

#include "common/http/http_responder.h"
#include "deploy/clients/cpp/async_resuming_client.h"
#include "deploy/gateway/gateway_metrics.h"
#include "deploy/gateway/openai/error_body.h"
#include "deploy/gateway/openai/response.h"
#include "deploy/gateway/request_pool.h"
#include "deploy/gateway/score_budget.h"

namespace quire {

// Returns the HTTP answer for an error. Parameters: as ToHttpError.
HttpResponse ErrorAnswer(const absl::Status& status,
                         std::optional<absl::Duration> retry_delay,
                         OpenAiApi api,
                         std::string_view max_tokens_name = "max_tokens");

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // Objects that all requests share. They outlive the requests.
  struct Shared {
    GatewayMetrics& metrics;
    RequestPool& pool;  // makes the JSON of whole answers with many log-probabilities
    ScoreBudget scores = {};
  };

  // stream: true if the answer is sent as events. request_id: sent as X-Request-Id.
  Generation(OpenAiApi api,
             bool stream,
             std::string request_id,
             std::unique_ptr<Response> response,
             HttpResponder responder,
             Shared& shared);
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  // Starts the streams. requests: one for each prompt. `client` keeps this object alive until all
  // streams have ended. Call once.
  void Start(AsyncResumingClient& client,
             const std::vector<v1::GenerateRequest>& requests,
             const std::string& api_key);

 private:
  class Handler;

  void OnResponse(size_t prompt, const v1::GenerateResponse& message);
  void OnDone(const grpc::Status& status);
  // Asks for the prompt's next message, now or when the HTTP client has read enough.
  void Continue(size_t prompt);
  void Answer(HttpResponse response);
  // If the answer is not streamed, charges the message's log-probabilities to the ScoreBudget,
  // because they stay in memory until the answer ends. Errors: kInvalidArgument ANSWER_SIZE,
  // kResourceExhausted ANSWER_MEMORY.
  absl::Status Hold(const v1::GenerateResponse& message);
  void Send(const std::vector<std::string>& texts);
  void Finish();
  void Fail(const absl::Status& status, std::optional<absl::Duration> retry_delay);
  void CancelStreams();

  const OpenAiApi api_;
  const bool stream_;
  const std::string request_id_;
  std::unique_ptr<Response> response_;  // null after a failure
  HttpResponder responder_;
  Shared& shared_;
  // Does not change after Next() was called on the first stream.
  std::vector<std::shared_ptr<AsyncResumingClient::Stream>> streams_;

  // Only the resuming client's thread uses these.
  bool has_begun_ = false;
  bool has_ended_ = false;
  size_t num_done_ = 0;
  ScoreCharge scores_;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_GENERATION_H_
