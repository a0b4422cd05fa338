#include "tests/fuzz/core_player.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>
#include <variant>

#include "common/base/check.h"
#include "tests/scheduler/core/next_block_audit.h"

namespace quire {
namespace {

constexpr int32_t kVocabSize = 31;
constexpr int kMaxEvents = 400;
constexpr int kEventsPerCheck = 4;  // of invariants, which costs more than an event
constexpr int kMaxStepsToTheEnd = 20'000;

constexpr std::array<int32_t, 8> kPriorities = {0,
                                                1,
                                                -1,
                                                100,
                                                -100,
                                                3,
                                                std::numeric_limits<int32_t>::max(),
                                                std::numeric_limits<int32_t>::min()};
constexpr std::array<Instant, 4> kAgeings = {
    0, kNanosPerSecond, int64_t{24} * 3600 * kNanosPerSecond, std::numeric_limits<Instant>::max()};

CoreConfig TakeConfig(FuzzInput* input) {
  CoreConfig config;
  config.max_queued_requests = 1 + input->TakeByte() % 16;
  config.max_queued_tokens = 10 + 2 * int64_t{input->TakeByte()};
  config.max_resumed_requests = 1 + input->TakeByte() % 16;
  config.watermark = 0.05 * (input->TakeByte() % 5);
  const uint8_t choice = input->TakeByte();
  config.scheduling_policy = static_cast<SchedulingPolicyKind>(choice % 3);
  config.priority_ageing = kAgeings[choice / 3 % kAgeings.size()];
  config.preemption_mode = static_cast<PreemptionMode>(choice / 12 % 3);
  config.target_inter_token = choice / 144 == 0 ? kInfiniteFuture : kNanosPerMilli;
  config.prefix_caching = choice / 36 % 4 != 0;
  return config;
}

}  // namespace

CorePlayer::CorePlayer(FuzzInput* input)
    : input_(*input),
      config_(TakeConfig(input)),
      sliding_window_(std::max(0, input_.TakeByte() % 64 - 32)),
      core_(config_) {}

void CorePlayer::Play() {
  for (int i = 0; i < kMaxEvents && !input_.empty(); ++i) {
    Do(input_.TakeByte() % 24);
    if (i % kEventsPerCheck == 0) {
      core_.CheckInvariants();
    }
    TakeEvents();
  }
}

void CorePlayer::Drain() {
  for (int i = 0; i < kMaxStepsToTheEnd && (!live_.empty() || core_.has_work()); ++i) {
    Step();
    if (i % kEventsPerCheck == 0) {
      core_.CheckInvariants();
    }
    TakeEvents();
  }
  QUIRE_CHECK(live_.empty());
  for (const PrefixInfo& prefix : core_.prefixes()) {
    QUIRE_CHECK(core_.UnpinPrefix(prefix.id));
  }
  for (int i = 0; i < kMaxStepsToTheEnd && core_.has_unanswered_plan(); ++i) {
    Step();
  }
  core_.CheckInvariants();
  const CoreStats stats = core_.stats();
  QUIRE_CHECK_EQ(stats.num_used_blocks + stats.num_pending_blocks, 0);
  QUIRE_CHECK_EQ(stats.num_used_host_blocks, 0);
  QUIRE_CHECK(stats.num_stored_tokens == 0 && stats.num_queued_tokens == 0);
  QUIRE_CHECK_EQ(core_.next_deadline(), kInfiniteFuture);
}

void CorePlayer::Do(int event) {
  switch (event) {
    case 0:
    case 1:
    case 2:
    case 3:
      return AddRequest();
    case 4: {
      const RequestId id = TakeId();
      const bool was_live = live_.contains(id);
      QUIRE_CHECK_EQ(core_.AbortRequest(id), was_live);
      return;
    }
    case 5:
      core_.FinishSequence(TakeId(), input_.TakeByte() % 5 - 1);
      return;
    case 6:
      return Pin();
    case 7:
      core_.UnpinPrefix(TakeId());
      return;
    case 8:
      return LoseWorkers();
    case 9:
      return AnswerWrongly();
    case 10:
      now_ += input_.TakeByte() * kNanosPerMilli;
      return core_.ExpireRequests(now_);
    default:
      return Step();
  }
}

std::vector<TokenId> CorePlayer::TakeTokens() {
  std::vector<TokenId> tokens(1 + input_.TakeByte() % 24U);
  const TokenId first = input_.TakeByte() % kVocabSize;
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = (first + static_cast<TokenId>(i)) % kVocabSize;
  }
  return tokens;
}

RequestId CorePlayer::TakeId() { return RequestId(1 + input_.TakeByte() % (last_id_ + 1)); }

void CorePlayer::AddRequest() {
  Request request;
  request.id = RequestId(last_id_ + 1);
  request.sampling.seed = last_id_ + 1;
  request.prompt_token_ids = TakeTokens();
  request.max_tokens = 1 + input_.TakeByte() % 24;
  request.arrival = now_;
  AskForMore(&request);
  if (core_.AddRequest(request) != AddOutcome::kQueued) {
    return;
  }
  ++last_id_;
  Live live{.request = request};
  const auto num_sequences = static_cast<size_t>(request.num_sequences);
  live.tokens.assign(num_sequences, request.prompt_token_ids);
  live.has_ended.assign(num_sequences, false);
  for (size_t i = 0; i < request.resumed.size(); ++i) {
    const ResumedSequence& resumed = request.resumed[i];
    live.tokens[i].insert(live.tokens[i].end(), resumed.token_ids.begin(), resumed.token_ids.end());
    live.has_ended[i] = resumed.has_ended;
  }
  live_.emplace(request.id, std::move(live));
}

// Each bit is something that few ask for.
void CorePlayer::AskForMore(Request* request) {
  const uint8_t wishes = input_.TakeByte();
  if ((wishes & 1) != 0) {
    request->num_sequences = 1 + input_.TakeByte() % 5;
  }
  if ((wishes & 2) != 0) {
    request->priority = kPriorities[input_.TakeByte() % kPriorities.size()];
    request->tenant = std::string(1, static_cast<char>('a' + input_.TakeByte() % 3));
  }
  if ((wishes & 4) != 0) {
    request->deadline = now_ + input_.TakeByte() * kNanosPerMilli;
  }
  if ((wishes & 8) != 0) {
    request->cache_salt = "salt";
    request->bypasses_prefix_cache = input_.TakeByte() % 2 != 0;
  }
  if ((wishes & 16) != 0) {
    request->stop_token_ids = {input_.TakeByte() % kVocabSize};
    const uint8_t byte = input_.TakeByte();
    request->sampling.min_tokens = byte % 4;
    request->sampling.num_prompt_logprobs = (wishes & 64) != 0 ? -1 : byte / 4 % 4 - 1;
  }
  if ((wishes & 32) != 0) {
    BeginLikeAnother(request);
  }
  if ((wishes & 64) != 0) {
    const uint8_t beams = input_.TakeByte();
    request->beam_search = {.num_beams = request->num_sequences + beams % 4,
                            .length_penalty = 0.5 * (beams / 4 % 7 - 2),
                            .early_stopping = static_cast<EarlyStopping>(beams / 28 % 3)};
    request->sampling.temperature = 0.0F;
    request->sampling.num_logprobs =
        request->beam_search->num_beams + static_cast<int32_t>(request->stop_token_ids.size());
  } else if ((wishes & 128) != 0) {
    Resume(request);
  }
}

void CorePlayer::BeginLikeAnother(Request* request) {
  const auto other = live_.find(TakeId());
  if (other != live_.end()) {
    std::vector<TokenId> prompt = other->second.tokens.front();
    prompt.insert(prompt.end(), request->prompt_token_ids.begin(), request->prompt_token_ids.end());
    request->prompt_token_ids = std::move(prompt);
  }
}

// Gives the request resumed tokens: some of those that it would have been told, as a client may
// have them.
void CorePlayer::Resume(Request* request) {
  request->is_resumed = true;
  for (int32_t i = 0; i < request->num_sequences; ++i) {
    const uint8_t byte = input_.TakeByte();
    ResumedSequence sequence{.has_ended = i > 0 && byte % 4 == 0};
    std::vector<TokenId> tokens = request->prompt_token_ids;
    for (int left = sequence.has_ended ? 0 : byte / 4 % 8; left > 0; --left) {
      const TokenId id =
          ExpectedToken(tokens, request->sampling.seed, i, kVocabSize, sliding_window_);
      const bool is_stop = std::ranges::count(request->stop_token_ids, id) > 0;
      if (is_stop || static_cast<int>(sequence.token_ids.size()) + 1 >= request->max_tokens) {
        break;
      }
      tokens.push_back(id);
      sequence.token_ids.push_back(id);
    }
    request->resumed.push_back(std::move(sequence));
  }
}

void CorePlayer::Pin() {
  const PinResult result = core_.PinPrefix(RequestId(last_id_ + 1), TakeTokens(), "");
  if (result.outcome == PinOutcome::kAccepted) {
    ++last_id_;
  }
}

void CorePlayer::Step() {
  if (!worker_.has_value()) {
    BeginEpoch();
  } else if (plan_.has_value()) {
    Answer();
  } else {
    Plan();
  }
}

void CorePlayer::BeginEpoch() {
  StepLimits limits = {.num_blocks = 2 + input_.TakeByte() % 40,
                       .num_host_blocks = input_.TakeByte() % 24,
                       .block_size_tokens = 1 << (input_.TakeByte() % 4),
                       .max_sequences = 1 + input_.TakeByte() % 12,
                       .max_tokens_per_step = 1 + input_.TakeByte() % 24,
                       .max_model_len = 2 + input_.TakeByte() % 80,
                       .vocab_size = kVocabSize,
                       .sliding_window = sliding_window_};
  const uint8_t choice = input_.TakeByte();
  limits.wants_next_blocks = (choice & 4) != 0;
  limits.blocks_per_page = 1 << ((choice >> 3) % 4);
  worker_.emplace(limits, /*swap_delay_steps=*/choice % 4);
  core_.BeginEpoch(1, ++group_epoch_, limits, /*after_crash=*/choice >= 0x80);
}

void CorePlayer::LoseWorkers() {
  if (worker_.has_value()) {
    core_.OnWorkersLost();
    worker_.reset();
    plan_.reset();
  }
}

void CorePlayer::Plan() {
  now_ += kNanosPerMilli;
  plan_ = core_.PlanStep(now_);
  if (plan_.has_value()) {
    const BlockMapLimits each_block = {.max_cells = 1 << 20};
    QUIRE_CHECK(FaultOfNextBlocks(*plan_, core_.block_map(each_block)).empty());
  }
}

void CorePlayer::Answer() {
  const uint8_t fault = input_.TakeByte();
  for (const BlockSwapIn& swap : plan_->swap_ins) {
    if (fault % 8 == 1) {
      worker_->FailSwapIn(swap.host_block);
    }
  }
  absl::StatusOr<StepResult> answer = worker_->Execute(*plan_);
  QUIRE_CHECK(answer.ok());
  if (fault % 8 == 2 && !answer->sampled.empty() && answer->failed_swap_ins.empty()) {
    SampledToken& sampled = answer->sampled[fault / 8U % answer->sampled.size()];
    sampled.finite = false;
    worker_->SpoilLastSlice(sampled.handle);
  }
  answer->timings.forward_us = fault == 0xFF ? std::numeric_limits<int64_t>::max() : fault;
  QUIRE_CHECK(core_.ApplyStepResult(*answer).ok());
  plan_.reset();
}

// Refused, and the right answer is taken after it.
void CorePlayer::AnswerWrongly() {
  if (!plan_.has_value()) {
    QUIRE_CHECK(!core_.ApplyStepResult(StepResult{}).ok());
    return;
  }
  StepResult wrong = worker_->Execute(*plan_).value();
  const uint8_t fault = input_.TakeByte();
  if (fault % 4 == 0) {
    ++wrong.header.step_id;
  } else if (fault % 4 == 1) {
    wrong.plan_digest ^= 1;
  } else if (fault % 4 == 2 && !wrong.sampled.empty()) {
    wrong.sampled.back().token_id = fault < 0x80 ? kVocabSize : -1;
  } else {
    wrong.sampled.emplace_back();
  }
  QUIRE_CHECK(!core_.ApplyStepResult(wrong).ok());
  QUIRE_CHECK(core_.has_unanswered_plan());
}

void CorePlayer::TakeEvents() {
  for (const OutputEvent& event : core_.TakeEvents()) {
    if (const auto* token = std::get_if<TokenCommitted>(&event)) {
      OnToken(*token);
    } else if (const auto* scored = std::get_if<PromptScored>(&event)) {
      OnPromptScored(*scored);
    } else {
      OnFinished(std::get<SequenceFinished>(event));
    }
  }
}

void CorePlayer::OnPromptScored(const PromptScored& scored) {
  const auto place = live_.find(scored.request_id);
  QUIRE_CHECK(place != live_.end());
  Live& live = place->second;
  PromptLogprobs expected = ExpectedPromptLogprobs(live.request.prompt_token_ids,
                                                   live.request.sampling.num_prompt_logprobs,
                                                   kVocabSize,
                                                   sliding_window_);
  expected.TakeFront(live.num_scored);
  QUIRE_CHECK(expected.TakeFront(scored.prompt.num_tokens()) == scored.prompt);
  live.num_scored += scored.prompt.num_tokens();
}

void CorePlayer::OnToken(const TokenCommitted& token) {
  const auto place = live_.find(token.request_id);
  QUIRE_CHECK(place != live_.end());
  Live& live = place->second;
  const auto index = static_cast<size_t>(token.sequence_index);
  QUIRE_CHECK(index < live.tokens.size() && !live.has_ended[index]);
  std::vector<TokenId>& tokens = live.tokens[index];
  QUIRE_CHECK_EQ(static_cast<size_t>(token.token_index),
                 tokens.size() - live.request.prompt_token_ids.size());
  QUIRE_CHECK(live.request.beam_search.has_value() ||
              token.token_id == ExpectedToken(tokens,
                                              live.request.sampling.seed,
                                              token.sequence_index,
                                              kVocabSize,
                                              sliding_window_));
  tokens.push_back(token.token_id);
  QUIRE_CHECK_LE(token.token_index, live.request.max_tokens - 1);
}

void CorePlayer::OnFinished(const SequenceFinished& finished) {
  const auto place = live_.find(finished.request_id);
  QUIRE_CHECK(place != live_.end());
  Live& live = place->second;
  const auto index = static_cast<size_t>(finished.sequence_index);
  QUIRE_CHECK(index < live.tokens.size() && !live.has_ended[index]);
  live.has_ended[index] = true;
  QUIRE_CHECK_EQ(finished.is_last_of_request, std::ranges::count(live.has_ended, false) == 0);
  if (finished.is_last_of_request) {
    live_.erase(place);
  }
}

}  // namespace quire
