#include "scheduler/loop/output_router.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/string_view.h"
#include "scheduler/core/crash_suspects.h"
#include "scheduler/loop/outbox.h"

namespace quire {
namespace {

// REQUIRES: reason is neither kStop nor kLength.
absl::Status StatusOf(FinishReason reason, const absl::Status& abort_status) {
  switch (reason) {
    case FinishReason::kExpiredQueued:
      return Error(absl::StatusCode::kDeadlineExceeded,
                   "EXPIRED_QUEUED",
                   "deadline: passed before the first token was computed");
    case FinishReason::kExpiredRunning:
      return Error(absl::StatusCode::kDeadlineExceeded,
                   "EXPIRED_RUNNING",
                   "deadline: passed while the request was running");
    case FinishReason::kUnreachable:
      return DeadlineUnreachableStatus();
    case FinishReason::kNonFinite:
      return Error(absl::StatusCode::kInternal,
                   "NON_FINITE_LOGITS",
                   "model: its logits were NaN or infinite twice");
    case FinishReason::kNoCapacity:
      return NoCapacityStatus();
    case FinishReason::kWorkerCrash:
      return WorkerCrashStatus("request");
    default:
      return abort_status.ok() ? Error(absl::StatusCode::kCancelled, "CLIENT", "request: cancelled")
                               : abort_status;
  }
}

// abort_status: the cause of an abort. UNAVAILABLE counts as an error of the server; other causes
// count as aborts by the client.
RequestOutcome OutcomeOf(FinishReason reason, const absl::Status& abort_status) {
  switch (reason) {
    case FinishReason::kStop:
      return RequestOutcome::kStop;
    case FinishReason::kLength:
      return RequestOutcome::kLength;
    case FinishReason::kAborted:
      return absl::IsUnavailable(abort_status) ? RequestOutcome::kError : RequestOutcome::kAborted;
    case FinishReason::kExpiredQueued:
    case FinishReason::kExpiredRunning:
      return RequestOutcome::kExpired;
    case FinishReason::kUnreachable:
      return RequestOutcome::kRejected;
    default:
      return RequestOutcome::kError;
  }
}

// Drops from the update the tokens that a resumed client already has. Returns false if the client
// has the whole sequence. `received` is set only for a resumed beam search or best_of, which the
// core starts anew. Such a request sends a sequence in one update, so one call drops all its
// received tokens.
bool SkipReceived(const std::vector<ReceivedOutput>& received, SequenceUpdate& update) {
  if (received.empty()) {
    return true;
  }
  const ReceivedOutput& has = received.at(static_cast<size_t>(update.sequence_index));
  SplitFront(update, static_cast<size_t>(has.num_tokens));
  return !has.has_ended;
}

}  // namespace

absl::Status WorkerCrashStatus(std::string_view field) {
  return WithMetadata(
      Error(absl::StatusCode::kInternal,
            "WORKER_CRASH",
            absl::StrCat(ToAbsl(field),
                         ": its workers crashed ",
                         kMaxCrashes,
                         " times, the last three times while they computed nothing else")),
      "crashes",
      absl::StrCat(kMaxCrashes));
}

absl::Status DeadlineUnreachableStatus() {
  return Error(absl::StatusCode::kResourceExhausted,
               "DEADLINE_UNREACHABLE",
               "deadline: would pass before the request completes");
}

absl::Status NoCapacityStatus() {
  return Error(absl::StatusCode::kResourceExhausted,
               "EXCEEDS_CAPACITY",
               "request: no longer fits the KV cache, because the new workers have less memory");
}

absl::Status SlowConsumerStatus() {
  return Error(
      absl::StatusCode::kAborted, "SLOW_CONSUMER", "stream: the client does not read its output");
}

OutputText OutputOptions::NewText(std::span<const TokenId> prompt) const {
  if (tokenizer == nullptr || !(return_text || stop_matcher.has_value())) {
    return {};
  }
  return {tokenizer, prompt, skip_special_tokens, stop_matcher, min_tokens};
}

void OutputRouter::Open(const Request& request,
                        OutputOptions output,
                        std::shared_ptr<ResponseStream> stream) {
  auto open = std::make_unique<RequestOutput>();
  std::vector<ReceivedOutput> received = std::exchange(output.received, {});
  const bool is_resumed = !request.resumed.empty();
  open->stream = std::move(stream);
  open->stop_token_ids = request.stop_token_ids;
  open->num_prompt_tokens = static_cast<int32_t>(request.prompt_token_ids.size());
  open->max_tokens = request.max_tokens;
  open->arrival = request.arrival;
  open->sequences.resize(static_cast<size_t>(request.num_sequences));
  open->is_held = output.num_best.has_value();
  open->is_search = request.beam_search.has_value();
  for (size_t i = 0; i < open->sequences.size(); ++i) {
    SequenceOutput& sequence = open->sequences[i];
    sequence.update.sequence_index = static_cast<int32_t>(i);
    if (is_resumed) {
      sequence.text = std::move(received.at(i).text);
      sequence.num_tokens = received.at(i).num_tokens;
      sequence.ended = received.at(i).has_ended;
    } else {
      sequence.text = output.NewText(request.prompt_token_ids);
    }
  }
  if (!is_resumed) {
    open->to_skip = std::move(received);
  }
  open->options = std::move(output);
  const bool is_new = requests_.emplace(request.id, std::move(open)).second;
  QUIRE_CHECK(is_new);
}

void OutputRouter::OnStarted(std::span<const RequestId> ids, Instant now) {
  for (RequestId id : ids) {
    if (auto it = requests_.find(id); it != requests_.end()) {
      it->second->started = now;
    }
  }
}

void OutputRouter::Reject(RequestId id, absl::Status status, Instant now) {
  auto it = requests_.find(id);
  QUIRE_CHECK(it != requests_.end());
  it->second->end_status = std::move(status);
  it->second->outcome = RequestOutcome::kRejected;
  Close(id, *it->second, now);
}

void OutputRouter::SetAbortStatus(RequestId id, absl::Status status) {
  auto it = requests_.find(id);
  if (it != requests_.end() && it->second->abort_status.ok()) {
    it->second->abort_status = std::move(status);
  }
}

OutputRouter::Published OutputRouter::Publish(std::span<const OutputEvent> events, Instant now) {
  Published published;
  for (const OutputEvent& event : events) {
    if (const auto* token = std::get_if<TokenCommitted>(&event)) {
      OnToken(*token, now, published);
    } else if (const auto* scored = std::get_if<PromptScored>(&event)) {
      OnPromptScored(*scored, now);
    } else {
      OnFinished(std::get<SequenceFinished>(event), now, published);
    }
  }
  FlushTouched(now, published);
  return published;
}

void OutputRouter::OnToken(const TokenCommitted& token, Instant now, Published& published) {
  auto it = requests_.find(token.request_id);
  QUIRE_CHECK(it != requests_.end());
  RequestOutput& request = *it->second;
  SequenceOutput& sequence = request.sequences[static_cast<size_t>(token.sequence_index)];
  if (sequence.ended) {
    return;  // a stop string has ended the sequence
  }
  QUIRE_CHECK_EQ(token.token_index, sequence.num_tokens);
  MarkTouched(token.request_id, request, sequence);
  ObserveToken(request, sequence, now);
  request.num_cached_prompt_tokens = token.num_cached_prompt_tokens;
  ++sequence.num_tokens;
  sequence.sum_logprobs += double{token.logprob};
  sequence.update.token_ids.push_back(token.token_id);
  if (request.options.return_logprobs) {
    sequence.update.logprobs.push_back({token.logprob, token.top_logprobs});
  }
  sequence.update.text += TextOf(request, sequence, token.token_id);
  sequence.update.text_ends.push_back(static_cast<uint32_t>(sequence.update.text.size()));
  if (sequence.text.has_stopped()) {
    EndSequence(request, sequence, SequenceEnd::Reason::kStop);
    published.stopped.push_back({token.request_id, token.sequence_index});
  }
}

void OutputRouter::OnPromptScored(const PromptScored& scored, Instant now) {
  const auto it = requests_.find(scored.request_id);
  QUIRE_CHECK(it != requests_.end());
  SequenceUpdate update;
  update.prompt = scored.prompt;
  const bool is_written =
      it->second->overflowed || it->second->stream->Write(std::move(update), now);
  QUIRE_CHECK(is_written);
}

std::string OutputRouter::TextOf(RequestOutput& request, SequenceOutput& sequence, TokenId token) {
  const auto& stops = request.stop_token_ids;
  const bool ends_sequence = std::find(stops.begin(), stops.end(), token) != stops.end();
  if (ends_sequence && !request.options.include_stop_in_output) {
    return "";
  }
  std::string text = sequence.text.Push(token);
  return request.options.return_text ? text : "";
}

void OutputRouter::EndSequence(RequestOutput& request,
                               SequenceOutput& sequence,
                               SequenceEnd::Reason reason) {
  SequenceEnd end;
  end.reason = reason;
  end.num_prompt_tokens = request.num_prompt_tokens;
  end.num_cached_prompt_tokens = request.num_cached_prompt_tokens;
  end.num_output_tokens = sequence.num_tokens;
  end.text = sequence.text.Flush();
  if (sequence.text.has_stopped()) {
    end.reason = SequenceEnd::Reason::kStop;
    end.matched_stop =
        request.options.stop_strings[static_cast<size_t>(sequence.text.stop_index())];
  }
  if (!request.options.return_text) {
    end.text.clear();
  }
  sequence.update.end = std::move(end);
  sequence.ended = true;
}

void OutputRouter::OnFinished(const SequenceFinished& finished, Instant now, Published& published) {
  auto it = requests_.find(finished.request_id);
  QUIRE_CHECK(it != requests_.end());
  RequestOutput& request = *it->second;
  SequenceOutput& sequence = request.sequences[static_cast<size_t>(finished.sequence_index)];
  const bool ended_well =
      finished.reason == FinishReason::kStop || finished.reason == FinishReason::kLength;
  if (!sequence.ended && ended_well) {
    MarkTouched(finished.request_id, request, sequence);
    EndSequence(request,
                sequence,
                finished.reason == FinishReason::kStop ? SequenceEnd::Reason::kStop
                                                       : SequenceEnd::Reason::kLength);
    sequence.update.end->score = finished.beam_score;
  } else if (!sequence.ended && request.end_status.ok()) {
    request.end_status = StatusOf(finished.reason, request.abort_status);
  }
  sequence.ended = true;
  if (request.end_status.ok() || !ended_well) {
    request.outcome = OutcomeOf(finished.reason, request.abort_status);
  }
  if (finished.is_last_of_request) {
    if (request.is_held && request.end_status.ok()) {
      observer_->OnFirstToken(now - request.arrival);
      ReleaseBest(finished.request_id, request);
    }
    FlushTouched(now, published);
    Close(finished.request_id, request, now);
  }
}

void OutputRouter::ObserveToken(RequestOutput& request, SequenceOutput& sequence, Instant now) {
  if (!request.first_token.has_value()) {
    request.first_token = now;
    if (!request.is_held) {
      observer_->OnFirstToken(now - request.arrival);
    }
  }
  request.last_token = now;
  if (sequence.last_token.has_value() && !request.is_search) {
    observer_->OnInterToken(now - *sequence.last_token);
  }
  sequence.last_token = now;
  ++sequence.num_new_tokens;
}

void OutputRouter::MarkTouched(RequestId id, RequestOutput& request, SequenceOutput& sequence) {
  if (sequence.has_update) {
    return;
  }
  sequence.has_update = true;
  sequence.update.first_position = sequence.num_tokens;
  if (!request.is_held) {
    touched_.push_back({id, sequence.update.sequence_index});
  }
}

void OutputRouter::ReleaseBest(RequestId id, RequestOutput& request) {
  std::vector<SequenceOutput*> ranked;
  for (SequenceOutput& sequence : request.sequences) {
    // A sequence ends only after its first token, so num_tokens > 0.
    sequence.update.end->score = static_cast<float>(sequence.sum_logprobs / sequence.num_tokens);
    ranked.push_back(&sequence);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto* a, const auto* b) {
    return *a->update.end->score > *b->update.end->score;
  });
  for (int32_t rank = 0; rank < *request.options.num_best; ++rank) {
    SequenceOutput& sequence = *ranked[static_cast<size_t>(rank)];
    touched_.push_back({id, sequence.update.sequence_index});
    sequence.update.sequence_index = rank;
  }
}

void OutputRouter::FlushTouched(Instant now, Published& published) {
  for (const SequenceRef& ref : touched_) {
    RequestOutput& request = *requests_.find(ref.request_id)->second;
    SequenceOutput& sequence = request.sequences[static_cast<size_t>(ref.sequence_index)];
    SequenceUpdate update = std::move(sequence.update);
    sequence.update = SequenceUpdate();
    sequence.update.sequence_index = ref.sequence_index;
    sequence.has_update = false;
    if (!SkipReceived(request.to_skip, update)) {
      continue;
    }
    if (!request.overflowed && !request.stream->Write(std::move(update), now)) {
      request.overflowed = true;
      request.end_status = SlowConsumerStatus();
      published.overflowed.push_back(ref.request_id);
    }
  }
  touched_.clear();
}

void OutputRouter::Observe(const RequestOutput& request, Instant now) {
  const std::string refusal =
      request.outcome == RequestOutcome::kRejected ? ReasonOf(request.end_status) : std::string();
  RequestObservation seen{.outcome = request.outcome,
                          .refusal = refusal,
                          .duration_ns = now - request.arrival,
                          .num_prompt_tokens = request.num_prompt_tokens,
                          .max_tokens = request.max_tokens};
  if (request.started.has_value()) {
    seen.queue_ns = *request.started - request.arrival;
  }
  if (request.started.has_value() && request.first_token.has_value() && !request.is_search) {
    seen.prefill_ns = *request.first_token - *request.started;
    seen.decode_ns = request.last_token - *request.first_token;
  }
  for (const SequenceOutput& sequence : request.sequences) {
    seen.num_output_tokens.push_back(sequence.num_tokens);
    seen.longest_new_output = std::max(seen.longest_new_output, sequence.num_new_tokens);
  }
  observer_->OnRequestEnd(seen);
}

void OutputRouter::Close(RequestId id, RequestOutput& request, Instant now) {
  Observe(request, now);
  absl::Status status = std::move(request.end_status);
  if (!status.ok() && request.first_token.has_value() && request.sequences.size() == 1) {
    status = WithMetadata(
        std::move(status), "next_index", absl::StrCat(request.sequences.front().num_tokens));
  }
  std::shared_ptr<ResponseStream> stream = std::move(request.stream);
  requests_.erase(id);
  stream->End(std::move(status));
  if (stream->stalled_since() != kInfiniteFuture) {
    unread_.push_back(std::move(stream));
  }
}

std::vector<RequestId> OutputRouter::FindStalled(Instant before) {
  std::erase_if(unread_, [before](const std::shared_ptr<ResponseStream>& stream) {
    const Instant since = stream->stalled_since();
    if (since < before) {
      stream->End(SlowConsumerStatus());
    }
    return since < before || since == kInfiniteFuture;
  });
  std::vector<RequestId> stalled;
  for (const auto& [id, request] : requests_) {
    if (request->stream->stalled_since() < before) {
      stalled.push_back(id);
    }
  }
  return stalled;
}

std::string_view OutputRouter::RequestIdOf(RequestId id) const {
  const auto it = requests_.find(id);
  return it == requests_.end() ? "" : it->second->stream->request_id();
}

std::vector<RequestId> OutputRouter::OpenRequests() const {
  std::vector<RequestId> ids;
  ids.reserve(requests_.size());
  for (const auto& [id, request] : requests_) {
    ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace quire
