#include "deploy/clients/cpp/resume_state.h"

#include <algorithm>
#include <cstdint>

#include "proto/google/rpc/error_details.pb.h"
#include "proto/google/rpc/status.pb.h"

namespace quire {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDeadlineGrace(1000);
constexpr std::chrono::hours kLongestTimeout(24 * 365);

// Returns the delay in the status's RetryInfo; nullopt if the status has no RetryInfo.
std::optional<milliseconds> RetryDelayOf(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) {
    return std::nullopt;
  }
  for (const google::protobuf::Any& any : details.details()) {
    google::rpc::RetryInfo info;
    if (any.Is<google::rpc::RetryInfo>() && any.UnpackTo(&info)) {
      const std::chrono::seconds longest = kLongestTimeout;
      const int64_t seconds = std::clamp<int64_t>(info.retry_delay().seconds(), 0, longest.count());
      const int32_t nanos = std::clamp(info.retry_delay().nanos(), 0, 999'999'999);
      return std::chrono::ceil<milliseconds>(std::chrono::seconds(seconds) +
                                             std::chrono::nanoseconds(nanos));
    }
  }
  return std::nullopt;
}

// Returns true if the request should be sent again. If a full server refuses a new request, the
// request ends. A resumed request was accepted before, so it waits until a server has room.
bool IsWorthARetry(const grpc::Status& status, bool is_resuming) {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
      return true;
    // If a server shuts down, gRPC ends its calls with CANCELLED. A cancel by the caller itself
    // does not get here, because it sets ResumeState::end_.
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::INTERNAL:
    case grpc::StatusCode::UNKNOWN:
      // Quire's servers always send details, so a status without details comes from gRPC itself.
      return status.error_details().empty();
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return is_resuming && RetryDelayOf(status).has_value();
    default:
      return false;
  }
}

bool IsFull(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
}

grpc::Status DataLoss(const std::string& what) {
  return {grpc::StatusCode::DATA_LOSS, "stream: " + what};
}

milliseconds TimeoutOf(const v1::GenerateRequest& request) {
  return std::clamp<milliseconds>(
      milliseconds(request.timeout_ms()), milliseconds(0), kLongestTimeout);
}

}  // namespace

ResumeState::ResumeState(const v1::GenerateRequest& request,
                         const RetryPolicy& policy,
                         size_t num_servers)
    : request_(request),
      num_sequences_(request.has_n() ? request.n() : 1),
      num_servers_(num_servers),
      timeout_(request.has_timeout_ms() ? TimeoutOf(request) : milliseconds(kLongestTimeout)),
      patience_(policy) {}

grpc::Status ResumeState::BeginAttempt(Duration now) {
  if (end_.has_value()) {
    return *end_;
  }
  attempt_begin_ = now;
  attempt_brought_something_ = false;
  // The first attempt sends the caller's request unchanged, so that the server, not this client,
  // checks timeout_ms.
  if (is_first_attempt_) {
    is_first_attempt_ = false;
    return grpc::Status::OK;
  }
  const auto left = std::chrono::duration_cast<milliseconds>(timeout_ - now);
  if (left.count() <= 0) {
    return {grpc::StatusCode::DEADLINE_EXCEEDED, "deadline: passed before the next attempt"};
  }
  if (request_.has_timeout_ms()) {
    request_.set_timeout_ms(left.count());
  }
  *request_.mutable_resume() = resume_;
  if (has_started()) {
    request_.set_request_id(request_id_);
  }
  return grpc::Status::OK;
}

bool ResumeState::Take(v1::GenerateResponse* response) {
  if (end_.has_value()) {
    return false;
  }
  const grpc::Status status = TakeParts(response);
  if (!status.ok()) {
    end_ = status;
    return false;
  }
  attempt_brought_something_ |= response->has_started() || response->has_prompt_logprobs() ||
                                response->has_chunk() || response->has_finished();
  return true;
}

void ResumeState::Cancel() {
  if (!end_.has_value()) {
    end_ = grpc::Status(grpc::StatusCode::CANCELLED, "request: cancelled by the caller");
  }
}

ResumeState::Next ResumeState::EndAttempt(Duration now, const grpc::Status& status) {
  if (end_.has_value()) {
    return {.end = end_};
  }
  if (is_complete()) {
    return {.end = grpc::Status::OK};  // even if the stream broke after the answer's last message
  }
  if (status.ok()) {
    return {.end = DataLoss("ended before the answer was complete")};
  }
  auto lasted = std::chrono::duration_cast<milliseconds>(now - attempt_begin_);
  if (attempt_brought_something_) {
    patience_.NoteMessage();
    lasted = milliseconds(0);
  }
  if (!IsWorthARetry(status, request_.has_resume())) {
    return {.end = status};
  }
  if (!status.error_details().empty()) {  // Quire's servers always send details
    patience_.NoteServer();
  }
  const std::optional<milliseconds> wait =
      IsFull(status) ? patience_.WaitForPlace(RetryDelayOf(status).value_or(milliseconds(0)))
                     : patience_.WaitUnanswered(lasted);
  if (!wait.has_value()) {
    return {.end = GivenUp(status)};
  }
  server_ = (server_ + 1) % num_servers_;
  return {.end = std::nullopt, .wait = std::clamp<Duration>(timeout_ - now, Duration(0), *wait)};
}

grpc::Status ResumeState::TakeParts(v1::GenerateResponse* response) {
  grpc::Status status;
  if (response->has_started() && has_started()) {
    status = CheckStarted(response->started());
    response->clear_started();
  } else if (response->has_started()) {
    Start(response->started());
  }
  if (status.ok() && response->has_prompt_logprobs()) {
    status = TakePrompt(response->prompt_logprobs());
  }
  if (status.ok() && response->has_chunk()) {
    status = TakeChunk(response->chunk());
  }
  if (status.ok() && response->has_finished()) {
    status = TakeFinished(response->finished());
  }
  return status;
}

void ResumeState::Start(const v1::Started& started) {
  resume_.set_seed(started.seed());
  resume_.set_determinism_fingerprint(started.determinism_fingerprint());
  if (started.max_tokens() > 0) {  // older servers do not send max_tokens
    resume_.set_max_tokens(started.max_tokens());
  }
  request_id_ = started.request_id();
  for (int i = 0; i < num_sequences_; ++i) {
    resume_.add_sequences();
  }
}

grpc::Status ResumeState::CheckStarted(const v1::Started& started) const {
  const bool is_same = started.seed() == resume_.seed() &&
                       started.determinism_fingerprint() == resume_.determinism_fingerprint();
  return is_same ? grpc::Status::OK
                 : DataLoss("a server resumed with another seed or determinism fingerprint");
}

grpc::Status ResumeState::TakePrompt(const v1::PromptLogprobs& prompt) {
  if (prompt.first_position() != resume_.num_prompt_logprobs() + 1) {
    return DataLoss("log-probabilities of the prompt skip or repeat tokens");
  }
  resume_.set_num_prompt_logprobs(resume_.num_prompt_logprobs() + prompt.logprobs_size());
  return grpc::Status::OK;
}

grpc::Status ResumeState::TakeChunk(const v1::Chunk& chunk) {
  v1::ResumedSequence* sequence = Find(chunk.index());
  if (sequence == nullptr || chunk.first_position() != sequence->token_ids_size()) {
    return DataLoss("a chunk skips or repeats tokens");
  }
  sequence->mutable_token_ids()->MergeFrom(chunk.token_ids());
  return grpc::Status::OK;
}

grpc::Status ResumeState::TakeFinished(const v1::Finished& finished) {
  v1::ResumedSequence* sequence = Find(finished.index());
  if (sequence == nullptr || finished.num_output_tokens() != sequence->token_ids_size()) {
    return DataLoss("a sequence finished twice, or with tokens missing");
  }
  sequence->set_has_ended(true);
  return grpc::Status::OK;
}

v1::ResumedSequence* ResumeState::Find(int index) {
  if (index < 0 || index >= resume_.sequences_size() || resume_.sequences(index).has_ended()) {
    return nullptr;
  }
  return resume_.mutable_sequences(index);
}

bool ResumeState::is_complete() const {
  return has_started() && std::all_of(resume_.sequences().begin(),
                                      resume_.sequences().end(),
                                      [](const auto& each) { return each.has_ended(); });
}

grpc::Status ResumeState::GivenUp(const grpc::Status& last) const {
  const auto seconds = [](milliseconds time) {
    return std::to_string(std::chrono::floor<std::chrono::seconds>(time).count()) + " s";
  };
  const std::string after =
      IsFull(last) ? "waiting for full servers for " + seconds(patience_.waited_for_a_place())
                   : seconds(patience_.unanswered()) + " without an answer";
  return {last.error_code(),
          last.error_message() + " (given up after " + after + ")",
          last.error_details()};
}

grpc::Status PrepareCall(const v1::GenerateRequest& request,
                         const std::string& api_key,
                         grpc::ClientContext* context) {
  const auto is_visible_ascii = [](char c) { return c > ' ' && c <= '~'; };
  if (!std::all_of(api_key.begin(), api_key.end(), is_visible_ascii)) {
    return {grpc::StatusCode::UNAUTHENTICATED, "api_key: must be visible ASCII"};
  }
  if (!api_key.empty()) {
    context->AddMetadata("authorization", "Bearer " + api_key);
  }
  if (request.has_timeout_ms()) {
    context->set_deadline(std::chrono::system_clock::now() + TimeoutOf(request) + kDeadlineGrace);
  }
  return grpc::Status::OK;
}

}  // namespace quire
