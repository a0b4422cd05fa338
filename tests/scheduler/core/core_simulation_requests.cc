// The requests of CoreSimulation's clients.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "tests/scheduler/core/core_simulation.h"
#include "tests/support/requests.h"

namespace quire {

void CoreSimulation::AddRequest() {
  Request request = MakeRequest({.id = next_id_,
                                 .prompt = random_.Between(1, 2 * mean_prompt_),
                                 .max_tokens = random_.Between(1, 2 * mean_output_),
                                 .num_sequences = random_.Between(1, max_sequences_),
                                 .min_tokens = random_.OneIn(4) ? random_.Below(6) : 0},
                                num_words_);
  request.sampling.seed = next_id_;
  if (random_.OneIn(2)) {
    BeginLikeAnother(&request);
  }
  request.cache_salt = random_.OneIn(4) ? "salt" : "";
  if (config_.scheduling_policy != SchedulingPolicyKind::kFcfs) {
    request.priority = random_.Between(-3, 3);
    request.tenant = std::string(1, static_cast<char>('a' + random_.Below(3)));
    request.arrival = now_;
  }
  request.bypasses_prefix_cache = random_.OneIn(8);
  if (random_.OneIn(3)) {
    request.stop_token_ids = {random_.Below(kVocabSize), random_.Below(kVocabSize)};
  }
  if (random_.OneIn(is_tight_ ? 2 : 5)) {
    AskForBeams(&request);
  }
  if (score_draws_.OneIn(4) && !request.beam_search.has_value()) {
    AskForPromptLogprobs(&request);
  }
  if (random_.OneIn(deadline_rate_)) {
    request.deadline = now_ + random_.Between(-2, 60) * step_duration_;
  }
  if (!random_.OneIn(8)) {  // more would be refused than served
    ShrinkToFit(&request);
  }
  if (is_tight_ && random_.OneIn(2)) {
    GrowToFit(&request);
  }
  RequestModel model = ModelOf(request);
  if (limits_known_) {
    CutToContext(&model.request);
  }
  const AddOutcome expected = ExpectedOutcome(model);
  const bool has_others = HasLiveRequest();
  const AddOutcome outcome = core_->AddRequest(request);
  Trace(static_cast<uint64_t>(outcome));
  if (outcome == AddOutcome::kDeadlineUnreachable) {
    ++num_unreachable_;
    Expect(expected == AddOutcome::kQueued && request.deadline != kInfiniteFuture && has_others &&
               worker_.has_value() && request.resumed.empty(),
           "only who has a deadline, brings no output and finds others there is refused for it");
  } else {
    Expect(outcome == expected, "a request is refused when a bound says so, and only then");
  }
  if (outcome == AddOutcome::kQueued) {
    domains_.push_back({.salt = request.cache_salt, .is_bypassing = request.bypasses_prefix_cache});
    DrawPoison(request.max_tokens, &model);
    requests_.emplace(next_id_++, model);
  }
}

void CoreSimulation::AskForBeams(Request* request) {
  const int32_t num_beams =
      random_.Between(request->num_sequences, std::max(5, request->num_sequences));
  request->beam_search = {.num_beams = num_beams,
                          .length_penalty = 0.5 * random_.Between(-2, 4),
                          .early_stopping = static_cast<EarlyStopping>(random_.Below(3))};
  request->sampling.num_logprobs = num_beams + static_cast<int32_t>(request->stop_token_ids.size());
}

void CoreSimulation::AskForPromptLogprobs(Request* request) {
  request->sampling.num_prompt_logprobs = score_draws_.Between(0, 3);
}

void CoreSimulation::ShrinkToFit(Request* request) const {
  const auto fits = [this](Request cut) {
    CutToContext(&cut);
    return Fits(ModelOf(cut));
  };
  while (limits_known_ && !fits(*request) &&
         (request->prompt_token_ids.size() > 1 || request->max_tokens > 1)) {
    request->prompt_token_ids.resize((request->prompt_token_ids.size() + 1) / 2);
    request->max_tokens = (request->max_tokens + 1) / 2;
    request->num_sequences = (request->num_sequences + 1) / 2;
    if (request->beam_search.has_value()) {
      request->beam_search->num_beams = request->num_sequences;
    }
  }
}

// Raises max_tokens as far as the pool allows, so that the request may need every block.
void CoreSimulation::GrowToFit(Request* request) const {
  RequestModel model = ModelOf(*request);
  const auto num_prompt = static_cast<int32_t>(request->prompt_token_ids.size());
  const int32_t most = limits_known_ ? limits_.max_model_len - num_prompt : 0;
  while (model.request.max_tokens < most && Fits(model)) {
    request->max_tokens = model.request.max_tokens++;
  }
}

// Ends a new request where the first known context ends, as the core does.
void CoreSimulation::CutToContext(Request* request) const {
  const auto num_prompt = static_cast<int32_t>(request->prompt_token_ids.size());
  if (!request->is_resumed && num_prompt < limits_.max_model_len) {
    request->max_tokens = std::min(request->max_tokens, limits_.max_model_len - num_prompt);
  }
}

RequestModel CoreSimulation::ModelOf(const Request& request) {
  RequestModel model{.request = request};
  model.sequences.resize(static_cast<size_t>(request.num_sequences),
                         {.token_ids = request.prompt_token_ids});
  return model;
}

AddOutcome CoreSimulation::ExpectedOutcome(const RequestModel& model) const {
  const auto num_prompt = static_cast<int32_t>(model.request.prompt_token_ids.size());
  const CoreStats stats = core_->stats();
  if (limits_known_ && num_prompt >= limits_.max_model_len) {
    return AddOutcome::kTooLong;
  }
  if (limits_known_ && !Fits(model)) {
    return AddOutcome::kNeverFits;
  }
  const int32_t num_resumed = stats.num_waiting_resumed_requests;
  if (model.request.is_resumed) {
    const int64_t num_tokens = stats.num_queued_resumed_tokens + model.num_tokens();
    const int64_t under_way = int64_t{2} * limits_.max_sequences * limits_.max_model_len;
    return OutcomeOfBounds(model,
                           num_resumed + 1,
                           config_.max_resumed_requests,
                           num_tokens,
                           limits_known_ ? config_.max_queued_tokens + under_way
                                         : std::numeric_limits<int64_t>::max());
  }
  const int64_t num_tokens = stats.num_queued_tokens - stats.num_queued_resumed_tokens + num_prompt;
  return OutcomeOfBounds(model,
                         stats.num_waiting_requests - num_resumed + 1,
                         config_.max_queued_requests,
                         num_tokens,
                         config_.max_queued_tokens);
}

// The outcome of the bounds. The counts include the request itself and all that wait.
AddOutcome CoreSimulation::OutcomeOfBounds(const RequestModel& model,
                                           int64_t num_requests,
                                           int64_t max_requests,
                                           int64_t num_tokens,
                                           int64_t max_tokens) const {
  if (num_requests > max_requests) {
    return AddOutcome::kQueueFull;
  }
  if (num_tokens > max_tokens) {
    return AddOutcome::kQueueTokensFull;
  }
  int64_t num_held = 0;
  int64_t num_held_tokens = 0;
  for (const auto& [id, other] : requests_) {
    if (other.request.tenant == model.request.tenant && !other.is_finished() &&
        !other.was_introduced && other.request.is_resumed == model.request.is_resumed) {
      ++num_held;
      num_held_tokens += other.num_tokens();
    }
  }
  // A tenant must leave only half as many places of resumed requests free for others as it holds.
  const double share = model.request.is_resumed ? 0.5 : 1.0;
  const bool is_full = config_.scheduling_policy == SchedulingPolicyKind::kFairShare &&
                       num_held > 0 &&
                       (share * static_cast<double>(num_held + 1) >
                            static_cast<double>(max_requests - num_requests) ||
                        share * static_cast<double>(num_held_tokens + model.num_tokens()) >
                            static_cast<double>(max_tokens - num_tokens));
  return is_full ? AddOutcome::kTenantFull : AddOutcome::kQueued;
}

// The prompt begins with another request's tokens, which may include output, and may end with them.
void CoreSimulation::BeginLikeAnother(Request* request) {
  if (requests_.empty()) {
    return;
  }
  auto other = std::next(requests_.begin(), random_.Below(static_cast<int32_t>(requests_.size())));
  const std::vector<TokenId>& tokens = other->second.sequences.front().token_ids;
  std::vector<TokenId>& prompt = request->prompt_token_ids;
  const auto num_shared = static_cast<size_t>(
      random_.Between(1, static_cast<int32_t>(std::min(tokens.size(), prompt.size()))));
  std::copy_n(tokens.begin(), num_shared, prompt.begin());
  if (random_.OneIn(2)) {
    prompt.resize(num_shared);
  }
}

}  // namespace quire
