#include "deploy/gateway/generation.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/wire/grpc_status.h"
#include "deploy/gateway/request_identity.h"

namespace quire {
namespace {

// A stream pauses while more than kHighMarkBytes wait for the HTTP client, and goes on when at most
// kLowMarkBytes wait.
constexpr size_t kHighMarkBytes = 64 << 10;
constexpr size_t kLowMarkBytes = 16 << 10;

// If an answer has more log-probabilities than this, its JSON takes milliseconds, so a thread of
// the pool makes the JSON instead of the HTTP thread.
constexpr int64_t kManyScores = 1024;

constexpr char kJson[] = "application/json";

std::string EventOf(std::string_view text) {
  return absl::StrCat("data: ", absl::string_view(text.data(), text.size()), "\n\n");
}

}  // namespace

HttpResponse ErrorAnswer(const absl::Status& status,
                         std::optional<absl::Duration> retry_delay,
                         OpenAiApi api,
                         std::string_view max_tokens_name) {
  HttpError error = ToHttpError(status, retry_delay, api, max_tokens_name);
  HttpResponse response = {
      .status_code = error.status, .body = std::move(error.body), .content_type = kJson};
  if (error.retry_after_s.has_value()) {
    response.headers.emplace_back("Retry-After", absl::StrCat(*error.retry_after_s));
  }
  return response;
}

class Generation::Handler : public AsyncResumingClient::Handler {
 public:
  Handler(std::shared_ptr<Generation> generation, size_t prompt)
      : generation_(std::move(generation)), prompt_(prompt) {}

  void OnResponse(const v1::GenerateResponse& response) override {
    generation_->OnResponse(prompt_, response);
  }
  void OnDone(const grpc::Status& status) override { generation_->OnDone(status); }

 private:
  const std::shared_ptr<Generation> generation_;
  const size_t prompt_;
};

Generation::Generation(OpenAiApi api,
                       bool stream,
                       std::string request_id,
                       std::unique_ptr<Response> response,
                       HttpResponder responder,
                       Shared& shared)
    : api_(api),
      stream_(stream),
      request_id_(std::move(request_id)),
      response_(std::move(response)),
      responder_(std::move(responder)),
      shared_(shared),
      scores_(shared.scores) {}

void Generation::Start(AsyncResumingClient& client,
                       const std::vector<v1::GenerateRequest>& requests,
                       const std::string& api_key) {
  streams_.reserve(requests.size());
  for (size_t prompt = 0; prompt < requests.size(); ++prompt) {
    shared_.metrics.OnStreamBegin();
    streams_.push_back(client.Start(
        requests[prompt], api_key, std::make_shared<Handler>(shared_from_this(), prompt)));
  }
  for (const auto& stream : streams_) {
    stream->Next();
  }
  responder_.OnDisconnect([weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      self->CancelStreams();
    }
  });
}

void Generation::OnResponse(size_t prompt, const v1::GenerateResponse& message) {
  if (const absl::Status held = has_ended_ ? absl::OkStatus() : Hold(message); !held.ok()) {
    Fail(held, std::nullopt);
  }
  if (!has_ended_) {
    Send(response_->Take(static_cast<int32_t>(prompt), message));
    if (response_->has_ended()) {
      Finish();
    }
  }
  Continue(prompt);
}

absl::Status Generation::Hold(const v1::GenerateResponse& message) {
  if (stream_) {
    return absl::OkStatus();
  }
  int64_t num_scores = 0;
  for (const v1::TokenLogprobs& token : message.chunk().logprobs()) {
    num_scores += 1 + token.top_size();
  }
  for (const v1::TokenLogprobs& token : message.prompt_logprobs().logprobs()) {
    num_scores += 1 + token.top_size();
  }
  if (scores_.num_scores() + num_scores > ScoreBudget::kMaxOfAnswer) {
    return InvalidArgument("ANSWER_SIZE",
                           "logprobs: the answer has too many log-probabilities to be sent whole");
  }
  if (!scores_.Add(num_scores)) {
    return Error(absl::StatusCode::kResourceExhausted,
                 "ANSWER_MEMORY",
                 "server: too many log-probabilities wait in answers that are sent whole");
  }
  return absl::OkStatus();
}

void Generation::Continue(size_t prompt) {
  if (has_ended_ || !stream_ || responder_.unsent_bytes() <= kHighMarkBytes) {
    streams_[prompt]->Next();
    return;
  }
  // All prompts of a request share the responder, which keeps only one callback. So the callback
  // continues all streams; Next() has no effect on a stream that is not paused.
  responder_.OnDrained(kLowMarkBytes, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      for (const auto& stream : self->streams_) {
        stream->Next();
      }
    }
  });
}

void Generation::Answer(HttpResponse response) {
  response.headers.emplace_back(kRequestIdHeader, request_id_);
  responder_.Answer(std::move(response));
}

void Generation::Send(const std::vector<std::string>& texts) {
  if (texts.empty()) {
    return;
  }
  if (!std::exchange(has_begun_, true)) {
    responder_.Begin({.content_type = "text/event-stream; charset=utf-8",
                      .headers = {{kRequestIdHeader, request_id_}, {"X-Accel-Buffering", "no"}}});
  }
  std::string events;
  for (const std::string& text : texts) {
    absl::StrAppend(&events, EventOf(text));
  }
  responder_.Write(events);
}

void Generation::Finish() {
  has_ended_ = true;
  if (!stream_) {
    // This thread makes the events of all streams, so it must not spend milliseconds on one answer.
    const auto answer = [self = shared_from_this()] {
      self->Answer({.body = self->response_->Finish().front(), .content_type = kJson});
    };
    scores_.num_scores() > kManyScores ? shared_.pool.PostLarge(answer) : answer();
    return;
  }
  const std::vector<std::string> texts = response_->Finish();
  Send(texts);
  Send({"[DONE]"});
  responder_.Finish();
}

void Generation::OnDone(const grpc::Status& status) {
  shared_.metrics.OnStreamEnd();
  ++num_done_;
  const bool is_own_cancel =
      status.error_code() == grpc::StatusCode::CANCELLED && status.error_details().empty();
  if (is_own_cancel) {
    // Either the gateway shuts down, or the HTTP client is gone and will not read this error.
    Fail(Error(absl::StatusCode::kUnavailable, "DRAINING", "server: shuts down"), std::nullopt);
  } else if (!status.ok()) {
    Fail(FromGrpcStatus(status), RetryDelayOf(status));
  } else if (num_done_ == streams_.size()) {
    Fail(Error(absl::StatusCode::kInternal, "", "the answer ended early"), std::nullopt);
  }
}

// Has no effect after the answer's end.
void Generation::Fail(const absl::Status& status, std::optional<absl::Duration> retry_delay) {
  if (std::exchange(has_ended_, true)) {
    return;
  }
  const std::string_view max_tokens_name = response_->max_tokens_name();
  if (!has_begun_) {
    Answer(ErrorAnswer(status, retry_delay, api_, max_tokens_name));
  } else {
    Send({ToHttpError(status, retry_delay, api_, max_tokens_name).body, "[DONE]"});
    responder_.Finish();
  }
  // Frees the memory for other answers now, because the last stream may end later.
  response_.reset();
  scores_.Release();
  CancelStreams();
}

void Generation::CancelStreams() {
  for (const auto& stream : streams_) {
    stream->Cancel();
  }
}

}  // namespace quire
