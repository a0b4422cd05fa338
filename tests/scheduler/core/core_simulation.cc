#include "tests/scheduler/core/core_simulation.h"

#include <algorithm>
#include <span>
#include <utility>
#include <variant>

#include "scheduler/core/admission.h"
#include "tests/support/requests.h"

namespace quire {
namespace {

constexpr int32_t kVocabSize = 97;
constexpr uint64_t kIncarnation = 3;

// By the seed itself, so that a history is what it was before there were policies.
SchedulingPolicyKind PolicyOf(uint64_t seed) {
  switch (seed % 8) {
    case 6:
      return SchedulingPolicyKind::kPriority;
    case 7:
      return SchedulingPolicyKind::kFairShare;
    default:
      return SchedulingPolicyKind::kFcfs;
  }
}

CoreConfig DrawConfig(Random& random, uint64_t seed) {
  return {.max_queued_requests = random.Between(2, 20),
          .max_queued_tokens = random.Between(20, 400),
          .watermark = random.OneIn(2) ? 0.0 : 0.05 * random.Below(5),
          .scheduling_policy = PolicyOf(seed),
          .priority_ageing = kNanosPerSecond,
          .preemption_mode = random.OneIn(2) ? PreemptionMode::kSwap : PreemptionMode::kRecompute,
          .prefix_caching = random.OneIn(2),
          .block_hash_key = {.low = random.Next(), .high = random.Next()}};
}

// With a generator of its own: histories of the other seeds stay what they were.
int32_t DrawSlidingWindow(uint64_t seed) {
  Random random(~seed);
  return random.OneIn(3) ? random.Between(1, random.OneIn(2) ? 6 : 40) : 0;
}

}  // namespace

CoreSimulation::CoreSimulation(uint64_t seed, const RecordedCore::Log& log)
    : random_(seed),
      config_(DrawConfig(random_, seed)),
      core_(config_, log),
      step_duration_(random_.Between(5, 50) * kNanosPerMilli),
      mean_prompt_(random_.Between(1, 20)),
      mean_output_(random_.Between(1, random_.OneIn(2) ? 10 : 60)),
      abort_rate_(random_.Between(10, 200)),
      loss_rate_(random_.Between(20, 400)),
      non_finite_rate_(random_.OneIn(2) ? 1'000'000 : random_.Between(3, 60)),
      deadline_rate_(random_.Between(2, 20)),
      add_rate_(random_.Between(3, random_.OneIn(4) ? 60 : 12)),
      num_words_(random_.OneIn(3) ? random_.Between(1, 3) : kVocabSize),
      max_sequences_(random_.OneIn(2) ? random_.Between(2, 8) : 1),
      sliding_window_(DrawSlidingWindow(seed)) {}

std::string CoreSimulation::Run(int32_t num_events) {
  for (int32_t i = 0; i < num_events && failure_.empty(); ++i) {
    Step();
  }
  return failure_;
}

std::string CoreSimulation::Drain() {
  has_faults_ = false;
  // The audit bounds the steps of each request that is the oldest; this bounds what it cannot see.
  int32_t num_steps_left = 100'000;
  while (failure_.empty() && (HasLiveRequest() || core_.has_work()) && num_steps_left-- > 0) {
    if (!worker_.has_value()) {
      BeginEpoch();
    } else if (plan_.has_value()) {
      Apply();
    } else {
      Plan();
    }
    core_.CheckInvariants();
    TakeEvents();
  }
  Expect(!HasLiveRequest(), "liveness: everything finishes once the faults stop");
  Expect(!core_.has_work() || core_.has_unanswered_plan(), "no work is left");
  CoreStats stats = core_.stats();
  Expect(core_.has_unanswered_plan() || stats.num_used_blocks + stats.num_pending_blocks == 0,
         "no block is left");
  Expect(stats.num_free_blocks + stats.num_pending_blocks == stats.num_blocks, "all are free");
  Expect(stats.num_used_host_blocks == 0, "all host blocks are free");
  Expect(stats.num_stored_tokens == 0 && stats.num_queued_tokens == 0, "no token is left");
  Expect(core_.next_deadline() == kInfiniteFuture, "no timer is left");
  totals_ = stats;
  return failure_;
}

void CoreSimulation::Step() {
  ++num_events_;
  DrawEvent();
  core_.CheckInvariants();
  TakeEvents();
  CheckNobodyIsOverdue();
  CheckCounts();
}

void CoreSimulation::DrawEvent() {
  if (random_.OneIn(add_rate_)) {
    AddRequest();
  } else if (random_.OneIn(abort_rate_)) {
    Abort();
  } else if (random_.OneIn(abort_rate_)) {
    FinishSequence();
  } else if (random_.OneIn(20)) {
    PassTime();
  } else if (!worker_.has_value()) {
    BeginEpoch();
  } else if (random_.OneIn(loss_rate_)) {
    LoseWorkers();
  } else if (!plan_.has_value()) {
    Plan();
  } else if (random_.OneIn(30)) {
    ApplyWrongResult();
  } else {
    Apply();
  }
}

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
  if (random_.OneIn(5)) {
    AskForBeams(&request);
  }
  if (random_.OneIn(deadline_rate_)) {
    request.deadline = now_ + random_.Between(-2, 60) * step_duration_;
  }
  if (!random_.OneIn(8)) {  // more would be refused than served
    ShrinkToFit(&request);
  }
  const RequestModel model = ModelOf(request);
  const AddOutcome expected = ExpectedOutcome(model);
  const AddOutcome outcome = core_.AddRequest(request);
  Trace(static_cast<uint64_t>(outcome));
  Expect(outcome == expected, "a request is refused when a bound says so, and only then");
  if (outcome == AddOutcome::kQueued) {
    domains_.push_back({.salt = request.cache_salt, .is_bypassing = request.bypasses_prefix_cache});
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

void CoreSimulation::ShrinkToFit(Request* request) const {
  while (limits_known_ && !FitsPool(ModelOf(*request)) &&
         (request->prompt_token_ids.size() > 1 || request->max_tokens > 1)) {
    request->prompt_token_ids.resize((request->prompt_token_ids.size() + 1) / 2);
    request->max_tokens = (request->max_tokens + 1) / 2;
    request->num_sequences = (request->num_sequences + 1) / 2;
    if (request->beam_search.has_value()) {
      request->beam_search->num_beams = request->num_sequences;
    }
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
  const CoreStats stats = core_.stats();
  if (limits_known_ && num_prompt >= limits_.max_model_len) {
    return AddOutcome::kTooLong;
  }
  if (limits_known_ && !FitsPool(model)) {
    return AddOutcome::kNeverFits;
  }
  if (stats.num_waiting_requests >= config_.max_queued_requests) {
    return AddOutcome::kQueueFull;
  }
  return stats.num_queued_tokens + num_prompt > config_.max_queued_tokens
             ? AddOutcome::kQueueTokensFull
             : AddOutcome::kQueued;
}

// The prompt begins as some other request's tokens, output included, and may end with them.
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

void CoreSimulation::Abort() {
  RequestModel* request = AnyRequest();
  if (request == nullptr) {
    Expect(!core_.AbortRequest(RequestId(next_id_)), "an unknown request is not aborted");
    return;
  }
  bool was_live = !request->is_finished();
  request->was_aborted = true;
  Expect(core_.AbortRequest(request->request.id) == was_live, "abort says whether it was live");
}

void CoreSimulation::FinishSequence() {
  RequestModel* request = AnyRequest();
  if (request == nullptr) {
    return;
  }
  int32_t index = random_.Below(request->request.num_sequences + 1);
  bool was_live = false;
  if (index < request->request.num_sequences && !request->is_beam_search()) {
    SequenceModel& sequence = request->sequences[static_cast<size_t>(index)];
    was_live = !sequence.is_finished;
    sequence.was_stopped = true;
  }
  Expect(core_.FinishSequence(request->request.id, index) == was_live,
         "finish says whether the sequence was live");
}

void CoreSimulation::PassTime() {
  const Instant passed = random_.Between(1, 5) * step_duration_;
  now_ += passed;
  time_in_steps_ += plan_.has_value() ? passed : 0;
  core_.ExpireRequests(now_);
  Expect(core_.next_deadline() > now_, "what expired is gone");
}

void CoreSimulation::Plan() {
  if (last_result_.has_value() && random_.OneIn(30)) {
    Expect(!core_.ApplyStepResult(*last_result_).ok(), "a repeated answer is refused");
  }
  std::optional<StepPlan> plan = core_.PlanStep(now_);
  TakeEvents();
  if (!plan.has_value()) {
    Expect(!HasLiveRequest(), "while workers are ready, whoever lives computes");
    now_ += random_.Between(1, 10) * step_duration_;
    return;
  }
  CheckPlan(*plan);
  plan_ = std::move(plan);
  num_free_planned_ = core_.stats().num_free_blocks;
}

void CoreSimulation::Apply() {
  StepResult result = AnswerWithFaults();
  if (!failure_.empty()) {
    return;
  }
  const Instant duration = DurationOf(*plan_);
  now_ += duration;
  time_in_steps_ += duration;
  absl::Status status = core_.ApplyStepResult(result);
  Expect(status.ok(), "the answer fits: " + status.ToString());
  Expect(core_.stats().num_pending_blocks == 0, "nothing is pending after the answer");
  for (const SequenceSlice& slice : plan_->slices) {
    requests_.at(owner_of_handle_[slice.handle].id.value()).has_computed = true;
  }
  plan_.reset();
  last_result_ = std::move(result);
  TakeEvents();
  ExpectNone(audit_->OnApplied(requests_));
}

Instant CoreSimulation::DurationOf(const StepPlan& plan) const {
  int64_t num_tokens = 0;
  for (const SequenceSlice& slice : plan.slices) {
    num_tokens += slice.num_tokens;
  }
  return step_duration_ + num_tokens * (step_duration_ / 64);
}

StepResult CoreSimulation::AnswerWithFaults() {
  absl::StatusOr<StepResult> answer = worker_->Execute(*plan_);
  if (!answer.ok()) {
    Expect(false, "the worker takes the plan: " + answer.status().ToString());
    return {};
  }
  ExpectNone(audit_->OnExecuted(*plan_, *worker_, domains_));
  if (has_faults_ && random_.OneIn(50)) {  // the answer was lost, and is asked for again
    now_ += random_.Between(1, 3) * step_duration_;
    Expect(worker_->Execute(*plan_).value_or(StepResult{}) == *answer, "one step, one answer");
  }
  for (SampledToken& sampled : answer->sampled) {
    HandleOwner owner = owner_of_handle_[sampled.handle];
    RequestModel& request = requests_.at(owner.id.value());
    // Beams are told at the end: what they have in a row is not known here.
    SequenceModel& sequence =
        request.sequences[static_cast<size_t>(request.is_beam_search() ? 0 : owner.sequence_index)];
    if (sequence.is_finished) {
      continue;
    }
    if (has_faults_ && random_.OneIn(non_finite_rate_)) {
      sampled.finite = false;
      sampled.token_id = -1;  // what it says is never looked at
      ++sequence.num_non_finite;
      request.had_non_finite = true;
      audit_->OnNonFinite();
      worker_->SpoilLastSlice(sampled.handle);
    } else if (request.is_beam_search()) {
      if (!request.beams.has_value()) {
        request.beams.emplace(request.request, limits_);
      }
    } else {
      sequence.num_non_finite = 0;
    }
  }
  return *std::move(answer);
}

void CoreSimulation::ApplyWrongResult() {
  // Right but for one thing. The worker answers the same when it is asked again.
  StepResult wrong = worker_->Execute(*plan_).value_or(StepResult{});
  switch (random_.Below(8)) {
    case 0:
      ++wrong.header.step_id;
      break;
    case 1:
      --wrong.header.group_epoch;
      break;
    case 2:
      wrong.header.scheduler_incarnation = kIncarnation - 1;
      break;
    case 3:
      wrong.plan_digest ^= 1;
      break;
    case 4:
      wrong.sampled.emplace_back();
      break;
    case 5:
      if (wrong.sampled.empty()) {
        return;
      }
      wrong.sampled.back().token_id = kVocabSize;
      break;
    case 6:
      if (!lost_result_.has_value()) {
        return;
      }
      wrong = *lost_result_;  // a late reply, of workers that were given up
      break;
    default:
      if (!last_result_.has_value()) {
        return;
      }
      wrong = *last_result_;  // a repeated reply
  }
  CoreStats before = core_.stats();
  Expect(!core_.ApplyStepResult(wrong).ok(), "a wrong answer is refused");
  CoreStats after = core_.stats();
  Expect(core_.has_unanswered_plan(), "the plan still waits for its answer");
  Expect(after.num_used_blocks == before.num_used_blocks &&
             after.num_pending_blocks == before.num_pending_blocks &&
             after.num_tokens_committed == before.num_tokens_committed &&
             after.num_steps == before.num_steps,
         "a wrong answer changes nothing");
}

void CoreSimulation::LoseWorkers() {
  core_.OnWorkersLost();
  if (plan_.has_value() && random_.OneIn(2)) {  // they were lost after they had executed it
    const absl::StatusOr<StepResult> late = worker_->Execute(*plan_);
    Expect(late.ok() && !core_.ApplyStepResult(*late).ok(), "a late answer is refused");
    lost_result_ = late.value_or(StepResult{});
  }
  worker_.reset();
  audit_.reset();
  plan_.reset();
  Expect(!core_.PlanStep(now_).has_value(), "no plan without workers");
  Expect(core_.stats().num_running_requests == 0 && core_.stats().num_used_blocks == 0,
         "nothing runs without workers");
}

void CoreSimulation::BeginEpoch() {
  if (!limits_known_ || random_.OneIn(3)) {
    limits_ = DrawLimits();
    limits_known_ = true;
  }
  now_ += group_epoch_ == 0 ? 0 : random_.Between(0, 100) * 20 * kNanosPerMilli;
  const int32_t swap_delay_steps = random_.Below(4);
  worker_.emplace(limits_, swap_delay_steps);
  audit_.emplace(config_, limits_, swap_delay_steps);
  owner_of_handle_.assign(static_cast<size_t>(limits_.max_sequences), {});
  for (auto& [id, request] : requests_) {
    request.lacks_capacity = !FitsEver(request);
  }
  core_.BeginEpoch(kIncarnation, ++group_epoch_, limits_);
  TakeEvents();
  for (const auto& [id, request] : requests_) {
    Expect(request.is_finished() || !request.lacks_capacity, "who can never fit ends at once");
  }
}

StepLimits CoreSimulation::DrawLimits() {
  const int32_t max_blocks = random_.OneIn(8) ? 400 : 64;
  return {.num_blocks = random_.Between(2, random_.OneIn(2) ? 12 : max_blocks),
          .num_host_blocks = random_.OneIn(3) ? random_.Below(5) : random_.Between(5, 80),
          .block_size_tokens = 1 << random_.Below(4),
          .max_sequences = random_.Between(1, random_.OneIn(3) ? 24 : 8),
          .max_tokens_per_step = random_.Between(1, random_.OneIn(3) ? 8 : 40),
          .max_model_len = random_.Between(4, random_.OneIn(2) ? 40 : 200),
          .vocab_size = kVocabSize,
          .sliding_window = sliding_window_};
}

void CoreSimulation::CheckPlan(const StepPlan& plan) {
  Expect(plan.header.scheduler_incarnation == kIncarnation, "incarnation");
  Expect(plan.header.group_epoch == group_epoch_, "epoch");
  Trace(DigestOf(plan));
  for (const SequenceIntroduction& introduction : plan.introductions) {
    Expect(MayIntroduce(introduction), "a handle is introduced when it is free, or a beam's");
    CheckIntroduction(introduction);
  }
  for (const SequenceSlice& slice : plan.slices) {
    HandleOwner owner = owner_of_handle_[slice.handle];
    const RequestModel& request = requests_.at(owner.id.value());
    const auto index = static_cast<size_t>(request.is_beam_search() ? 0 : owner.sequence_index);
    Expect(!request.sequences[index].is_finished, "who has finished computes no more");
  }
  ExpectNone(audit_->OnPlan(plan, requests_, core_.stats()));
}

bool CoreSimulation::MayIntroduce(const SequenceIntroduction& introduction) const {
  if (!worker_->IsKnown(introduction.handle)) {
    return true;
  }
  const HandleOwner owner = owner_of_handle_[introduction.handle];
  auto it = requests_.find(owner.id.value());
  return it != requests_.end() && it->second.is_beam_search() &&
         introduction.sampling.seed == owner.id.value() &&
         introduction.sequence_index == owner.sequence_index;
}

void CoreSimulation::CheckIntroduction(const SequenceIntroduction& introduction) {
  auto it = requests_.find(introduction.sampling.seed);
  if (it == requests_.end() || introduction.sequence_index >= it->second.request.group_size()) {
    Expect(false, "an introduction is of a known sequence");
    return;
  }
  RequestModel& request = it->second;
  const auto index =
      static_cast<size_t>(request.is_beam_search() ? 0 : introduction.sequence_index);
  const SequenceModel& sequence = request.sequences[index];
  Expect(!sequence.is_finished, "who has finished is not introduced");
  const bool is_history = request.beams.has_value() ? request.beams->HadBeam(introduction.token_ids)
                                                    : introduction.token_ids == sequence.token_ids;
  Expect(is_history, "an introduction repeats the history");
  Expect(introduction.num_prompt_tokens ==
             static_cast<int32_t>(request.request.prompt_token_ids.size()),
         "the prompt is as long as it was");
  Expect(introduction.sampling == request.request.sampling, "sampling is as asked for");
  request.was_introduced = true;
  num_passed_blocks_ +=
      std::count(introduction.block_ids.begin(), introduction.block_ids.end(), kNullBlockId);
  owner_of_handle_[introduction.handle] = {request.request.id, introduction.sequence_index};
}

void CoreSimulation::TakeEvents() {
  for (const OutputEvent& event : core_.TakeEvents()) {
    if (const auto* token = std::get_if<TokenCommitted>(&event)) {
      OnToken(*token);
    } else {
      OnFinished(std::get<SequenceFinished>(event));
    }
  }
}

void CoreSimulation::OnToken(const TokenCommitted& event) {
  auto it = requests_.find(event.request_id.value());
  if (it == requests_.end() || event.sequence_index < 0 ||
      event.sequence_index >= it->second.request.num_sequences) {
    Expect(false, "a token is of a known sequence");
    return;
  }
  const Request& request = it->second.request;
  SequenceModel& sequence = it->second.sequences[static_cast<size_t>(event.sequence_index)];
  Expect(!sequence.is_finished, "no token after the end");
  size_t num_output = sequence.token_ids.size() - request.prompt_token_ids.size();
  Expect(event.token_index == static_cast<int32_t>(num_output), "no index missing or doubled");
  const bool is_beam = it->second.is_beam_search();
  const TokenId expected =
      is_beam
          ? it->second.beams->hypotheses()[static_cast<size_t>(event.sequence_index)].token_ids.at(
                num_output)
          : ExpectedToken(sequence.token_ids,
                          request.sampling.seed,
                          event.sequence_index,
                          kVocabSize,
                          limits_.sliding_window);
  Expect(event.token_id == expected, "the token follows from the true history");
  sequence.token_ids.push_back(event.token_id);
  Trace(static_cast<uint64_t>(event.token_id));
}

void CoreSimulation::OnFinished(const SequenceFinished& event) {
  auto it = requests_.find(event.request_id.value());
  if (it == requests_.end() || event.sequence_index < 0 ||
      event.sequence_index >= it->second.request.num_sequences) {
    Expect(false, "an end is of a known sequence");
    return;
  }
  RequestModel& request = it->second;
  SequenceModel& sequence = request.sequences[static_cast<size_t>(event.sequence_index)];
  Expect(!sequence.is_finished, "one end for each sequence");
  Expect(request.is_beam_search() ? IsTrueReasonOfBeams(request, event)
                                  : IsTrueReason(request, sequence, event.reason),
         "the reason is true: " + std::to_string(static_cast<int>(event.reason)));
  Expect(event.num_output_tokens == static_cast<int32_t>(sequence.token_ids.size() -
                                                         request.request.prompt_token_ids.size()),
         "the end counts the tokens");
  sequence.is_finished = true;
  const int64_t num_pool_tokens = int64_t{limits_.num_blocks - 1} * limits_.block_size_tokens;
  num_longer_than_pool_ += static_cast<int64_t>(sequence.token_ids.size()) > num_pool_tokens;
  Expect(event.is_last_of_request == request.is_finished(), "the last sequence says so");
  ++num_finished_[static_cast<size_t>(event.reason)];
  Trace(static_cast<uint64_t>(event.reason));
}

bool CoreSimulation::IsTrueReason(const RequestModel& request,
                                  const SequenceModel& sequence,
                                  FinishReason reason) const {
  switch (reason) {
    case FinishReason::kStop:
      return sequence.was_stopped || HasStopped(request, sequence);
    case FinishReason::kLength:
      return IsFull(request, sequence) && !HasStopped(request, sequence);
    case FinishReason::kAborted:
      return request.was_aborted;
    case FinishReason::kExpiredQueued:
      return request.request.deadline <= now_ && !request.has_computed;
    case FinishReason::kExpiredRunning:
      return request.request.deadline <= now_ && request.was_introduced;
    case FinishReason::kNonFinite:
      return sequence.num_non_finite == 2;
    case FinishReason::kNoCapacity:
      return request.lacks_capacity;
  }
  return false;
}

bool CoreSimulation::IsTrueReasonOfBeams(const RequestModel& request,
                                         const SequenceFinished& event) const {
  if (event.reason == FinishReason::kStop || event.reason == FinishReason::kLength) {
    const BeamHypothesis& hypothesis =
        request.beams->hypotheses()[static_cast<size_t>(event.sequence_index)];
    return hypothesis.has_stopped == (event.reason == FinishReason::kStop) &&
           event.beam_score == hypothesis.score &&
           event.num_output_tokens == static_cast<int32_t>(hypothesis.token_ids.size());
  }
  if (event.num_output_tokens > 0 || event.beam_score.has_value()) {
    return false;
  }
  if (event.reason == FinishReason::kNonFinite) {
    return request.had_non_finite;
  }
  return IsTrueReason(request, request.sequences.front(), event.reason);
}

bool CoreSimulation::HasStopped(const RequestModel& request, const SequenceModel& sequence) const {
  size_t num_output = sequence.token_ids.size() - request.request.prompt_token_ids.size();
  const std::vector<TokenId>& stops = request.request.stop_token_ids;
  return num_output > static_cast<size_t>(request.request.sampling.min_tokens) &&
         std::find(stops.begin(), stops.end(), sequence.token_ids.back()) != stops.end();
}

bool CoreSimulation::IsFull(const RequestModel& request, const SequenceModel& sequence) const {
  auto num_tokens = static_cast<int32_t>(sequence.token_ids.size());
  auto num_prompt = static_cast<int32_t>(request.request.prompt_token_ids.size());
  return num_tokens - num_prompt == request.request.max_tokens ||
         num_tokens == limits_.max_model_len;
}

bool CoreSimulation::FitsPool(const RequestModel& request) const {
  auto num_prompt = static_cast<int32_t>(request.request.prompt_token_ids.size());
  auto num_live = static_cast<int32_t>(std::count_if(
      request.sequences.begin(), request.sequences.end(), [](const SequenceModel& sequence) {
        return !sequence.is_finished;
      }));
  num_live = request.is_beam_search() ? request.request.group_size() : num_live;
  int32_t num_tokens = std::min(num_prompt + request.request.max_tokens, limits_.max_model_len);
  return num_prompt < limits_.max_model_len && num_live <= limits_.max_sequences &&
         NumBlocksAtMost(num_live, num_tokens, limits_) < limits_.num_blocks;
}

bool CoreSimulation::FitsEver(const RequestModel& request) const {
  if (request.beams.has_value() && !request.beams->Fits(limits_)) {
    return false;
  }
  return FitsPool(request) && std::all_of(request.sequences.begin(),
                                          request.sequences.end(),
                                          [this](const SequenceModel& sequence) {
                                            return sequence.is_finished ||
                                                   static_cast<int32_t>(sequence.token_ids.size()) <
                                                       limits_.max_model_len;
                                          });
}

void CoreSimulation::CheckNobodyIsOverdue() {
  for (const auto& [id, request] : requests_) {
    if (request.is_beam_search()) {
      continue;  // its tokens come with its end
    }
    for (const SequenceModel& sequence : request.sequences) {
      size_t num_prompt = request.request.prompt_token_ids.size();
      bool has_output = sequence.token_ids.size() > num_prompt;
      Expect(sequence.is_finished || sequence.num_non_finite < 2, "two bad rows end it");
      Expect(sequence.is_finished || !has_output || !HasStopped(request, sequence),
             "a stop token ends it");
      Expect(
          sequence.is_finished || !has_output || !worker_.has_value() || !IsFull(request, sequence),
          "a full sequence ends");
    }
  }
  // What has ended needs no more checking.
  std::erase_if(requests_, [this](const auto& entry) {
    return entry.second.is_finished() && entry.first + 8 < next_id_ && !plan_.has_value();
  });
}

void CoreSimulation::CheckCounts() {
  const CoreStats stats = core_.stats();
  const auto num_live = std::count_if(requests_.begin(), requests_.end(), [](const auto& entry) {
    return !entry.second.is_finished();
  });
  Expect(stats.num_waiting_requests + stats.num_running_requests + stats.num_swapped_requests ==
             num_live,
         "who lives waits, runs or is swapped");
  Expect(!plan_.has_value() || stats.num_free_blocks == num_free_planned_,
         "no block becomes free while the step that may touch it is unanswered");
  Expect(
      stats.num_free_blocks + stats.num_used_blocks + stats.num_pending_blocks == stats.num_blocks,
      "every block is free, used or pending");
  Expect(stats.num_free_cached_blocks <= stats.num_free_blocks &&
             stats.num_held_blocks <= stats.num_used_blocks &&
             stats.num_used_blocks - stats.num_held_blocks <= stats.num_leaving_blocks,
         "a used block that no table holds is leaving");
  Expect(stats.num_stored_tokens <= stats.num_table_tokens && stats.fragmentation() >= 0.0 &&
             stats.fragmentation() < 1.0,
         "held blocks hold tokens, shared ones once");
  Expect(stats.num_shared_blocks > 0 || stats.num_stored_tokens == stats.num_table_tokens,
         "without sharing a token is stored once");
}

RequestModel* CoreSimulation::AnyRequest() {
  if (requests_.empty()) {
    return nullptr;
  }
  auto it = requests_.begin();
  std::advance(it, random_.Below(static_cast<int32_t>(requests_.size())));
  return &it->second;
}

bool CoreSimulation::HasLiveRequest() const {
  return std::any_of(requests_.begin(), requests_.end(), [](const auto& entry) {
    return !entry.second.is_finished();
  });
}

void CoreSimulation::Trace(uint64_t word) {
  trace_hash_ = (trace_hash_ ^ word) * 0x9E3779B97F4A7C15ULL;
  trace_hash_ ^= trace_hash_ >> 31;
}

void CoreSimulation::Expect(bool condition, const std::string& what) {
  if (!condition && failure_.empty()) {
    failure_ = "event " + std::to_string(num_events_) + ": not so: " + what;
  }
}

}  // namespace quire
