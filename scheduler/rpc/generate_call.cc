#include "scheduler/rpc/generate_call.h"

#include <algorithm>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include <grpc/support/time.h>
#include <grpcpp/server_context.h>

#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "scheduler/rpc/public_status.h"
#include "scheduler/rpc/resume_check.h"
#include "scheduler/rpc/trace_context.h"
#include "scheduler/rpc/wire_message.h"

namespace quire {
namespace {

uint64_t RandomNumber() {
  thread_local std::random_device device;
  return uint64_t{device()} << 32 | device();
}

std::string RandomRequestId() {
  return absl::StrFormat("%016x%016x", RandomNumber(), RandomNumber());
}

// Returns the client's deadline on SteadyNow's clock; kInfiniteFuture if there is none.
Instant DeadlineOf(const grpc::CallbackServerContext& context, Instant now) {
  const gpr_timespec left =
      gpr_time_sub(gpr_convert_clock_type(context.raw_deadline(), GPR_CLOCK_MONOTONIC),
                   gpr_now(GPR_CLOCK_MONOTONIC));
  // A deadline more than 100 years away counts as no deadline.
  constexpr int64_t kLongestSeconds = int64_t{100} * 365 * 24 * 3600;
  if (left.tv_sec > kLongestSeconds) {
    return kInfiniteFuture;
  }
  return now + left.tv_sec * kNanosPerSecond + left.tv_nsec;
}

Instant DeadlineAfter(Instant now, int64_t timeout_ms) {
  const int64_t room_ms = (kInfiniteFuture - now) / kNanosPerMilli - 1;
  return timeout_ms > room_ms ? kInfiniteFuture : now + timeout_ms * kNanosPerMilli;
}

std::string Millis(int64_t nanos) {
  return absl::StrFormat("%.3f", static_cast<double>(nanos) / kNanosPerMilli);
}

TraceContext TraceOf(const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  if (metadata.count("traceparent") != 1) {
    return {};
  }
  const grpc::string_ref header = metadata.find("traceparent")->second;
  return ParseTraceParent({header.data(), header.size()}).value_or(TraceContext());
}

// Returns the bytes that a request holds while it waits for the task pool.
int64_t NumBytes(const GenerateSpec& spec) {
  size_t num_tokens = spec.token_ids.size();
  for (const ResumedSequence& sequence : spec.request.resumed) {
    num_tokens += sequence.token_ids.size();
  }
  const size_t num_text_bytes = spec.text.has_value() ? spec.text->size() : 0;
  return static_cast<int64_t>(num_text_bytes + num_tokens * sizeof(TokenId));
}

void FillLogprobs(float logprob, std::span<const TokenLogprob> top, v1::TokenLogprobs* message) {
  message->set_logprob(logprob);
  for (const TokenLogprob& each : top) {
    v1::TokenLogprob* entry = message->add_top();
    entry->set_token_id(each.token_id);
    entry->set_logprob(each.logprob);
  }
}

void FillChunk(const SequenceUpdate& update, v1::Chunk* chunk) {
  chunk->set_index(update.sequence_index);
  chunk->set_first_position(update.first_position);
  chunk->mutable_token_ids()->Add(update.token_ids.begin(), update.token_ids.end());
  chunk->set_text(update.text);
  if (update.token_ids.size() > 1) {
    chunk->mutable_text_ends()->Add(update.text_ends.begin(), update.text_ends.end());
  }
  for (const OutputLogprobs& logprobs : update.logprobs) {
    FillLogprobs(logprobs.logprob, logprobs.top, chunk->add_logprobs());
  }
}

void FillPrompt(const PromptLogprobs& prompt, v1::PromptLogprobs* message) {
  message->set_first_position(prompt.first_position);
  const auto num_top = static_cast<size_t>(prompt.num_top);
  for (size_t i = 0; i < prompt.logprobs.size(); ++i) {
    FillLogprobs(prompt.logprobs[i],
                 std::span(prompt.top).subspan(i * num_top, num_top),
                 message->add_logprobs());
  }
}

void FillFinished(const SequenceUpdate& update, v1::Finished* finished) {
  finished->set_index(update.sequence_index);
  finished->set_reason(update.end->reason == SequenceEnd::Reason::kStop ? v1::FINISH_REASON_STOP
                                                                        : v1::FINISH_REASON_LENGTH);
  finished->set_text(update.end->text);
  finished->set_matched_stop(update.end->matched_stop);
  finished->set_num_prompt_tokens(update.end->num_prompt_tokens);
  finished->set_num_output_tokens(update.end->num_output_tokens);
  finished->set_num_cached_prompt_tokens(update.end->num_cached_prompt_tokens);
  if (update.end->score.has_value()) {
    finished->set_score(*update.end->score);
  }
}

}  // namespace

void FillResponse(const SequenceUpdate& update, v1::GenerateResponse* response) {
  if (!update.token_ids.empty() || !update.text.empty()) {
    FillChunk(update, response->mutable_chunk());
  }
  if (update.end.has_value()) {
    FillFinished(update, response->mutable_finished());
  }
  if (update.prompt.num_tokens() > 0) {
    FillPrompt(update.prompt, response->mutable_prompt_logprobs());
  }
}

GenerateCall::GenerateCall(const ServiceParts* parts, grpc::CallbackServerContext* context)
    : parts_(*parts), context_(context), arrival_(SteadyNow()), outbox_(parts->outbox_limits) {}

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerateCall::Start(
    const ServiceParts* parts,
    grpc::CallbackServerContext* context,
    const grpc::ByteBuffer& request) {
  std::shared_ptr<GenerateCall> call(new GenerateCall(parts, context));
  call->self_ = call;
  const absl::Status status = call->Begin(request);
  if (!status.ok()) {
    call->Refuse(status);
  }
  return call.get();
}

absl::Status GenerateCall::Begin(const grpc::ByteBuffer& request) {
  v1::GenerateRequest message;
  request_id_ = RandomRequestId();
  QUIRE_ASSIGN_OR_RETURN(rules_.tenant, TenantOfCall(parts_.api_keys, *context_));
  QUIRE_RETURN_IF_ERROR(ParseMessage(request, &message));
  QUIRE_RETURN_IF_ERROR(CheckRequestId(message.request_id()));
  if (!message.request_id().empty()) {
    request_id_ = message.request_id();
  }
  live_name_ = LiveRequests::NameOf(rules_.tenant, request_id_);
  QUIRE_RETURN_IF_ERROR(parts_.state->CheckAdmission());
  rules_.model = parts_.model;
  const ServingState::Snapshot state = parts_.state->Get();
  rules_.max_model_len = state.limits.max_model_len;
  rules_.determinism_fingerprint = DeterminismFingerprint(*parts_.model, state.numerics);
  rules_.fresh_seed = RandomNumber();
  rules_.has_priorities = parts_.has_priorities;
  rules_.requires_cache_salt = parts_.requires_cache_salt;
  QUIRE_ASSIGN_OR_RETURN(spec_, CheckGenerateRequest(message, rules_));
  QUIRE_RETURN_IF_ERROR(CheckResumedFit(spec_.request, state.limits));
  deadline_ = DeadlineOf(*context_, arrival_);
  if (spec_.timeout_ms.has_value()) {
    deadline_ = std::min(deadline_, DeadlineAfter(arrival_, *spec_.timeout_ms));
  }
  if (deadline_ <= arrival_) {
    return Error(absl::StatusCode::kDeadlineExceeded, "EXPIRED", "deadline: passed before arrival");
  }
  if (spec_.has_all_ended()) {
    End(absl::OkStatus());
    return absl::OkStatus();
  }
  is_resumed_ = spec_.request.is_resumed;
  if (is_resumed_) {
    parts_.live_requests->AddResumed(live_name_, weak_from_this());
  } else {
    QUIRE_RETURN_IF_ERROR(parts_.live_requests->Add(live_name_, weak_from_this()));
  }
  {
    absl::MutexLock lock(&mutex_);
    is_registered_ = true;
    if (is_finished_) {  // an Abort call has ended this call meanwhile
      parts_.live_requests->Remove(live_name_, this);
    }
  }
  if (!spec_.text.has_value() && spec_.request.resumed.empty()) {
    return Admit(std::move(spec_.token_ids));
  }
  return parts_.tasks->Submit({.run = [call = shared_from_this()] { call->Tokenize(); },
                               .owner = spec_.request.tenant,
                               .num_bytes = NumBytes(spec_),
                               .is_resumed = spec_.request.is_resumed});
}

absl::Status GenerateCall::CheckWanted() const {
  if (SteadyNow() >= deadline_) {
    return Error(absl::StatusCode::kDeadlineExceeded,
                 "EXPIRED_QUEUED",
                 "deadline: passed before the first token was computed");
  }
  absl::MutexLock lock(&mutex_);
  return abort_.value_or(absl::OkStatus());
}

absl::StatusOr<std::vector<TokenId>> GenerateCall::PromptTokens() {
  QUIRE_RETURN_IF_ERROR(CheckWanted());
  if (!spec_.text.has_value()) {
    return std::move(spec_.token_ids);
  }
  const std::string text = *std::exchange(spec_.text, std::nullopt);
  TextBudget budget(text.size(), [this] { return CheckWanted(); });
  return parts_.model->tokenizer->Encode(
      text, spec_.add_special_tokens, spec_.parse_special_tokens, &budget);
}

void GenerateCall::Tokenize() {
  absl::StatusOr<std::vector<TokenId>> prompt = PromptTokens();
  const absl::Status status = prompt.ok() ? Admit(*std::move(prompt)) : prompt.status();
  if (!status.ok()) {
    Refuse(status);
  }
}

absl::Status GenerateCall::Admit(std::vector<TokenId> prompt) {
  const auto check_wanted = [this] { return CheckWanted(); };
  QUIRE_RETURN_IF_ERROR(SetPrompt(std::move(prompt), rules_, check_wanted, &spec_));
  spec_.request.arrival = arrival_;
  spec_.request.deadline = deadline_;
  absl::MutexLock lock(&mutex_);
  if (abort_.has_value()) {
    return *abort_;
  }
  num_prompt_tokens_ = static_cast<int32_t>(spec_.request.prompt_token_ids.size());
  max_tokens_ = spec_.request.max_tokens;
  seed_ = spec_.request.sampling.seed;
  QUIRE_ASSIGN_OR_RETURN(loop_id_,
                         parts_.inbox->Add({.request = std::move(spec_.request),
                                            .output = std::move(spec_.output),
                                            .stream = shared_from_this()}));
  return absl::OkStatus();
}

// A resumed request takes over its id from the old stream, which is broken but can still seem alive
// to this server. The old stream keeps the id until the resumed request has a place in the queue.
// If the id moved earlier, a refused resumption would already have ended the old stream.
void GenerateCall::OnQueued() {
  {
    absl::MutexLock lock(&mutex_);
    if (!is_resumed_ || is_abort_posted_) {
      return;  // an aborted call must not end the old stream, which a client may still read
    }
  }
  const absl::Status status = parts_.live_requests->TakeOver(live_name_, shared_from_this());
  if (!status.ok()) {
    Abort(status);
    return;
  }
  absl::MutexLock lock(&mutex_);
  if (is_finished_) {
    parts_.live_requests->Remove(live_name_, this);
  }
}

void GenerateCall::Refuse(absl::Status status) {
  parts_.observer->OnRequestEnd({.outcome = RequestOutcome::kRejected,
                                 .refusal = ReasonOf(status),
                                 .duration_ns = SteadyNow() - arrival_});
  absl::MutexLock lock(&mutex_);
  end_status_ = std::move(status);
  Advance();
}

bool GenerateCall::Write(SequenceUpdate update, Instant now) {
  absl::MutexLock lock(&mutex_);
  if (is_finished_) {
    return true;  // the client cancelled; OnCancel has told the loop
  }
  if (!outbox_.Append(std::move(update), now)) {
    return false;
  }
  Advance();
  return true;
}

void GenerateCall::End(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  if (absl::IsAborted(status)) {
    outbox_.Clear();
    FinishNow(status);  // does not wait for a write, which may be stuck
    return;
  }
  end_status_ = std::move(status);
  Advance();
}

Instant GenerateCall::stalled_since() const {
  absl::MutexLock lock(&mutex_);
  return outbox_.stalled_since();
}

void GenerateCall::Abort(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  if (loop_id_.has_value()) {
    // Posts only the first abort, since Inbox::Post has no bound and a client may abort often.
    if (!std::exchange(is_abort_posted_, true)) {
      parts_.inbox->Post(AbortRequest{*loop_id_, std::move(status)});
    }
  } else {
    abort_ = std::move(status);
    FinishNow(*abort_);  // else a shutdown would wait until the task pool runs this call
  }
}

void GenerateCall::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  is_writing_ = false;
  if (!ok) {
    outbox_.Clear();  // the call is cancelled; OnCancel does the rest
    outbox_.OnSent(SteadyNow());
    return;
  }
  outbox_.OnSent(SteadyNow());
  Advance();
}

void GenerateCall::OnCancel() {
  Abort(CancelledByClient());
  absl::MutexLock lock(&mutex_);
  outbox_.Clear();
  FinishNow(CancelledByClient());
}

void GenerateCall::OnDone() {
  if (parts_.logs_requests) {
    LogEnd();  // not in FinishNow: logging there would delay the loop
  }
  parts_.unread->End(context_);
  self_.reset();
}

void GenerateCall::LogEnd() const {
  const Instant now = SteadyNow();
  const TraceContext trace = TraceOf(*context_);
  absl::MutexLock lock(&mutex_);
  LogInfo("request ended",
          {{"request_id", request_id_},
           {"status", absl::StatusCodeToString(status_.code())},
           {"reason", ReasonOf(status_)},
           {"prompt_tokens", absl::StrCat(num_prompt_tokens_)},
           {"output_tokens", absl::StrCat(num_output_tokens_)},
           {"first_token_ms", started_at_.has_value() ? Millis(*started_at_ - arrival_) : ""},
           {"total_ms", Millis(now - arrival_)},
           {"trace_id", trace.trace_id},
           {"parent_id", trace.parent_id}});
}

void GenerateCall::Advance() {
  if (is_writing_ || is_finished_) {
    return;
  }
  if (std::optional<SequenceUpdate> update = outbox_.Take()) {
    Encode(*update);
    is_writing_ = true;
    StartWrite(&buffer_);
  } else if (end_status_.has_value()) {
    FinishNow(*end_status_);
  }
}

void GenerateCall::FinishNow(const absl::Status& status) {
  if (is_finished_) {
    return;
  }
  is_finished_ = true;
  if (is_registered_) {
    parts_.live_requests->Remove(live_name_, this);
  }
  status_ = status;
  context_->AddTrailingMetadata("x-request-id", request_id_);
  parts_.unread->Begin(context_, SteadyNow());
  Finish(ToPublicStatus(status, parts_.state->queue_drain()));
}

void GenerateCall::Encode(const SequenceUpdate& update) {
  response_.Clear();
  if (!started_at_.has_value()) {
    started_at_ = SteadyNow();
    v1::Started* started = response_.mutable_started();
    started->set_request_id(request_id_);
    started->set_num_prompt_tokens(num_prompt_tokens_);
    started->set_seed(seed_);
    started->set_determinism_fingerprint(rules_.determinism_fingerprint);
    started->set_max_tokens(max_tokens_);
  }
  num_output_tokens_ += static_cast<int64_t>(update.token_ids.size());
  FillResponse(update, &response_);
  buffer_ = SerializeMessage(response_);
}

}  // namespace quire
