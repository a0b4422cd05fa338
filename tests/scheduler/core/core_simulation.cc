#include "tests/scheduler/core/core_simulation.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>
#include <variant>

#include "scheduler/core/admission.h"

namespace quire {
namespace {

// The seed itself chooses the policy, not the generator, so that histories from before there were
// policies stay the same.
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

constexpr int32_t kNever = 1'000'000'000;

constexpr PreemptionMode kModes[] = {
    PreemptionMode::kRecompute, PreemptionMode::kSwap, PreemptionMode::kAuto};

// Draws from a generator of its own, so that histories of the other seeds stay the same. A step
// takes 5 to 50 ms, and a 64th of that more for each token.
Instant DrawTargetInterToken(uint64_t seed) {
  Random random(seed ^ 0x544F'4B45'4E53'0001ULL);
  if (random.OneIn(2)) {
    return kInfiniteFuture;
  }
  return random.OneIn(2) ? kAutoInterToken : random.Between(1, 100) * kNanosPerMilli;
}

// Draws from a generator of its own, as DrawTargetInterToken. An introduction takes 256 bytes and 4
// for each token, so that one fits, or a few.
int64_t DrawIntroductionBudget(uint64_t seed) {
  Random random(seed ^ 0x494E'5452'4F44'0001ULL);
  return random.OneIn(3) ? random.Between(1, 4000) : kIntroductionBudgetBytes;
}

CoreConfig DrawConfig(Random& random, uint64_t seed) {
  return {.max_queued_requests = random.Between(2, 20),
          .max_queued_tokens = random.Between(20, 400),
          .max_resumed_requests = 1 + static_cast<int64_t>(seed % 23),
          .watermark = random.OneIn(2) ? 0.0 : 0.05 * random.Below(5),
          .scheduling_policy = PolicyOf(seed),
          .priority_ageing = kNanosPerSecond,
          .target_inter_token = DrawTargetInterToken(seed),
          .introduction_budget_bytes = DrawIntroductionBudget(seed),
          .preemption_mode = kModes[random.Below(3)],
          .prefix_caching = random.OneIn(2),
          .block_hash_key = {.low = random.Next(), .high = random.Next()}};
}

// Draws from a generator of its own, so that histories of the other seeds stay the same.
int32_t DrawSlidingWindow(uint64_t seed) {
  Random random(~seed);
  return random.OneIn(3) ? random.Between(1, random.OneIn(2) ? 6 : 40) : 0;
}

int32_t DrawBlocksPerPage(uint64_t seed) {
  Random random(seed ^ 0x5041'4745'5300'0001ULL);
  return random.OneIn(2) ? 1 : 1 << random.Between(1, 4);
}

}  // namespace

CoreSimulation::CoreSimulation(uint64_t seed, const RecordedCore::Log& log)
    : random_(seed),
      config_(DrawConfig(random_, seed)),
      core_(std::in_place, config_, log),
      cache_events_(config_),
      step_duration_(random_.Between(5, 50) * kNanosPerMilli),
      copy_duration_(step_duration_ * random_.Below(32) / 64),
      mean_prompt_(random_.Between(1, 20)),
      mean_output_(random_.Between(1, random_.OneIn(2) ? 10 : 60)),
      abort_rate_(random_.Between(10, 200)),
      // A request that is alone in the step for three kills in a row would end, although it did no
      // harm.
      loss_rate_(random_.Between(100, 600)),
      non_finite_rate_(random_.OneIn(2) ? 1'000'000 : random_.Between(3, 60)),
      deadline_rate_(random_.Between(2, 20)),
      add_rate_(random_.Between(3, random_.OneIn(4) ? 60 : 12)),
      num_words_(random_.OneIn(3) ? random_.Between(1, 3) : kVocabSize),
      max_sequences_(random_.OneIn(2) ? random_.Between(2, 8) : 1),
      sliding_window_(DrawSlidingWindow(seed)),
      is_tight_(seed % 8 == 5),
      swap_faults_(seed ^ 0x5357'4150'494E'0001ULL),
      swap_in_failure_rate_(swap_faults_.OneIn(2) ? 1'000'000 : swap_faults_.Between(2, 15)),
      deaths_(seed ^ 0x4445'4154'4853'0001ULL),
      death_rate_(deaths_.OneIn(4) && log.sink == nullptr ? deaths_.Between(30, 300) : kNever),
      poison_draws_(seed ^ 0x504F'4953'4F4E'0001ULL),
      poison_rate_(poison_draws_.OneIn(2) ? 1'000'000 : poison_draws_.Between(2, 30)),
      loss_causes_(seed ^ 0x4C4F'5353'4553'0001ULL),
      score_draws_(seed ^ 0x5343'4F52'4553'0001ULL),
      wants_next_blocks_(Random(seed ^ 0x4E45'5854'0000'0001ULL).OneIn(2)),
      blocks_per_page_(DrawBlocksPerPage(seed)) {
  core_->KeepCacheEvents();
}

std::string CoreSimulation::Run(int32_t num_events) {
  for (int32_t i = 0; i < num_events && failure_.empty(); ++i) {
    Step();
  }
  return failure_;
}

std::string CoreSimulation::Drain() {
  has_faults_ = false;
  // The audit bounds the steps of each request while it is the oldest. This bounds the steps that
  // the audit does not count.
  int32_t num_steps_left = 100'000;
  while (failure_.empty() && (HasLiveRequest() || core_->has_work()) && num_steps_left-- > 0) {
    if (!worker_.has_value()) {
      BeginEpoch();
    } else if (plan_.has_value()) {
      Apply();
    } else {
      Plan();
    }
    core_.untimed().CheckInvariants();
    TakeEvents();
    CheckCacheEvents();
  }
  ExpectNone(core_.Fault());
  Expect(!HasLiveRequest(), "liveness: everything finishes once the faults stop");
  Expect(!core_->has_work() || core_->has_unanswered_plan(), "no work is left");
  CoreStats stats = core_->stats();
  Expect(core_->has_unanswered_plan() || stats.num_used_blocks + stats.num_pending_blocks == 0,
         "no block is left");
  Expect(stats.num_free_blocks + stats.num_pending_blocks == stats.num_blocks, "all are free");
  Expect(stats.num_used_host_blocks == 0, "all host blocks are free");
  Expect(stats.num_stored_tokens == 0 && stats.num_queued_tokens == 0, "no token is left");
  Expect(core_->next_deadline() == kInfiniteFuture, "no timer is left");
  totals_ = stats;
  return failure_;
}

void CoreSimulation::Step() {
  ++num_events_;
  DrawEvent();
  core_.untimed().CheckInvariants();
  TakeEvents();
  ExpectNone(core_.Fault());
  CheckNobodyIsOverdue();
  CheckCounts();
  CheckCacheEvents();
  if (config_.scheduling_policy == SchedulingPolicyKind::kFairShare) {
    ExpectNone(fairness_.Check(requests_));
  }
}

void CoreSimulation::DrawEvent() {
  if (deaths_.OneIn(death_rate_)) {
    LoseScheduler();
  } else if (random_.OneIn(add_rate_)) {
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
    KillWorkers();
  } else if (!plan_.has_value()) {
    Plan();
  } else if (random_.OneIn(30)) {
    ApplyWrongResult();
  } else {
    Apply();
  }
}

void CoreSimulation::Abort() {
  RequestModel* request = AnyRequest();
  if (request == nullptr) {
    Expect(!core_->AbortRequest(RequestId(next_id_)), "an unknown request is not aborted");
    return;
  }
  bool was_live = !request->is_finished();
  request->was_aborted = true;
  Expect(core_->AbortRequest(request->request.id) == was_live, "abort says whether it was live");
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
  Expect(core_->FinishSequence(request->request.id, index) == was_live,
         "finish says whether the sequence was live");
}

void CoreSimulation::PassTime() {
  const Instant passed = random_.Between(1, 5) * step_duration_;
  now_ += passed;
  time_in_steps_ += plan_.has_value() ? passed : 0;
  core_->ExpireRequests(now_);
  Expect(core_->next_deadline() > now_, "what expired is gone");
}

void CoreSimulation::Plan() {
  if (last_result_.has_value() && random_.OneIn(30)) {
    Expect(!core_->ApplyStepResult(*last_result_).ok(), "a repeated answer is refused");
  }
  std::optional<StepPlan> plan = core_->PlanStep(now_);
  TakeEvents();
  if (!plan.has_value()) {
    Expect(!HasLiveRequest(), "while workers are ready, whoever lives computes");
    now_ += random_.Between(1, 10) * step_duration_;
    return;
  }
  num_started_ = 0;
  CheckPlan(*plan);
  Expect(core_->started().size() == num_started_, "nobody else is told to start");
  DrawFailedSwapIns(*plan);
  plan_ = std::move(plan);
  num_free_planned_ = core_->stats().num_free_blocks;
}

void CoreSimulation::Apply() {
  std::optional<StepResult> answer = AnswerWithFaults();
  if (!answer.has_value()) {
    return;
  }
  StepResult result = *std::move(answer);
  const Instant duration = DurationOf(*plan_);
  now_ += duration;
  time_in_steps_ += duration;
  result.timings.forward_us = duration / kNanosPerMicro;
  if (has_faults_ && random_.OneIn(100)) {  // a clock that is wrong
    result.timings.forward_us = static_cast<int64_t>(random_.Next());
  }
  const CoreStats before = core_->stats();
  absl::Status status = core_->ApplyStepResult(result);
  Expect(status.ok(), "the answer fits: " + status.ToString());
  OnApplied(result, before);
  Expect(core_->stats().num_pending_blocks == 0, "nothing is pending after the answer");
  for (const SequenceSlice& slice : plan_->slices) {
    const HandleOwner owner = owner_of_handle_[slice.handle];
    RequestModel& request = requests_.at(owner.id.value());
    const auto index = static_cast<size_t>(request.is_beam_search() ? 0 : owner.sequence_index);
    // The core drops the tokens of a sequence that ended before the answer came.
    request.has_computed = request.has_computed || !request.sequences[index].is_finished;
  }
  OnPoisonComputed();
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
  const auto num_copies = static_cast<int64_t>(plan.swap_outs.size() + plan.swap_ins.size());
  return step_duration_ + num_tokens * (step_duration_ / 64) + num_copies * copy_duration_;
}

// Returns nullopt if the worker crashed or if a check failed.
std::optional<StepResult> CoreSimulation::AnswerWithFaults() {
  absl::StatusOr<StepResult> answer = worker_->Execute(*plan_);
  if (!worker_->crashed_by().empty()) {
    OnCrash();
    return std::nullopt;
  }
  if (!answer.ok()) {
    Expect(false, "the worker takes the plan: " + answer.status().ToString());
    return std::nullopt;
  }
  ExpectNone(audit_->OnExecuted(*plan_, *worker_, domains_));
  Expect(answer->failed_swap_ins == failed_swap_ins_,
         "a swap-in brings back what was swapped out, unless it was made to fail");
  if (has_faults_ && random_.OneIn(50)) {  // the answer was lost, and is asked for again
    now_ += random_.Between(1, 3) * step_duration_;
    Expect(worker_->Execute(*plan_).value_or(StepResult{}) == *answer, "one step, one answer");
  }
  for (SampledToken& sampled : answer->sampled) {
    HandleOwner owner = owner_of_handle_[sampled.handle];
    RequestModel& request = requests_.at(owner.id.value());
    // A beam's sequences are known only at the end of its request, so the request's first sequence
    // counts its rows.
    SequenceModel& sequence =
        request.sequences[static_cast<size_t>(request.is_beam_search() ? 0 : owner.sequence_index)];
    if (sequence.is_finished) {  // nobody hears of it, and nobody may build on it
      if (random_.OneIn(2)) {
        worker_->SpoilLastSlice(sampled.handle);
      }
      continue;
    }
    if (has_faults_ && random_.OneIn(non_finite_rate_) && failed_swap_ins_.empty()) {
      sampled.finite = false;
      sampled.token_id = -1;  // what it says is never looked at
      ++sequence.num_non_finite;
      request.had_non_finite = true;
      audit_->OnRecomputed();
      worker_->SpoilLastSlice(sampled.handle);
    }
  }
  SpoilScored(*answer);
  return answer.value();
}

// Makes a log-probability of a prompt's token not finite, now and then. The sequence has no token
// in this step, else AnswerWithFaults would have counted a non-finite row for it.
void CoreSimulation::SpoilScored(StepResult& answer) {
  for (ScoredSlice& scored : answer.scored) {
    const HandleOwner owner = owner_of_handle_[scored.handle];
    RequestModel& request = requests_.at(owner.id.value());
    SequenceModel& sequence = request.sequences[static_cast<size_t>(owner.sequence_index)];
    const bool is_sampled = std::ranges::any_of(
        answer.sampled, [&](const SampledToken& each) { return each.handle == scored.handle; });
    if (has_faults_ && !sequence.is_finished && !is_sampled && failed_swap_ins_.empty() &&
        score_draws_.OneIn(non_finite_rate_)) {
      scored.prompt.logprobs.back() = std::numeric_limits<float>::quiet_NaN();
      ++sequence.num_non_finite;
      request.had_non_finite = true;
      audit_->OnRecomputed();
      worker_->SpoilLastSlice(scored.handle);
    }
  }
}

void CoreSimulation::ApplyWrongResult() {
  // The answer is right except for one field, which the switch changes. The worker answers the same
  // if it is asked again.
  StepResult wrong = worker_->Execute(*plan_).value_or(StepResult{});
  if (!worker_->crashed_by().empty()) {
    return OnCrash();
  }
  if (!wrong.scored.empty() && score_draws_.OneIn(2)) {
    wrong.scored.back().prompt.TakeFront(1);
    return ExpectRefused(wrong);
  }
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
  ExpectRefused(wrong);
}

void CoreSimulation::ExpectRefused(const StepResult& wrong) {
  CoreStats before = core_->stats();
  Expect(!core_->ApplyStepResult(wrong).ok(), "a wrong answer is refused");
  CoreStats after = core_->stats();
  Expect(core_->has_unanswered_plan(), "the plan still waits for its answer");
  Expect(after.num_used_blocks == before.num_used_blocks &&
             after.num_pending_blocks == before.num_pending_blocks &&
             after.num_tokens_committed == before.num_tokens_committed &&
             after.num_steps == before.num_steps,
         "a wrong answer changes nothing");
}

void CoreSimulation::LoseWorkers() {
  core_->OnWorkersLost();
  // The lost workers may have executed the plan before.
  if (plan_.has_value() && worker_->crashed_by().empty() && random_.OneIn(2)) {
    const absl::StatusOr<StepResult> late = worker_->Execute(*plan_);
    Expect(!worker_->crashed_by().empty() || (late.ok() && !core_->ApplyStepResult(*late).ok()),
           "a late answer is refused");
    lost_result_ = late.value_or(StepResult{});
  }
  worker_.reset();
  audit_.reset();
  plan_.reset();
  Expect(!core_->PlanStep(now_).has_value(), "no plan without workers");
  Expect(core_->stats().num_running_requests == 0 && core_->stats().num_used_blocks == 0,
         "nothing runs without workers");
}

void CoreSimulation::BeginEpoch() {
  const bool were_limits_known = std::exchange(limits_known_, true);
  if (!were_limits_known || random_.OneIn(3)) {
    limits_ = DrawLimits();
  }
  now_ += group_epoch_ == 0 ? 0 : random_.Between(0, 100) * (20 * kNanosPerMilli);
  const int32_t swap_delay_steps = random_.Below(4);
  worker_.emplace(limits_, swap_delay_steps);
  audit_.emplace(config_, limits_, swap_delay_steps);
  owner_of_handle_.assign(static_cast<size_t>(limits_.max_sequences), {});
  for (auto& [id, request] : requests_) {
    if (!were_limits_known) {
      CutToContext(&request.request);
    }
    request.lacks_capacity = !Fits(request);
    if (request.poison.has_value()) {
      worker_->Poison(id, *request.poison);
    }
  }
  core_->BeginEpoch(kIncarnation, ++group_epoch_, limits_, std::exchange(was_crash_, false));
  TakeEvents();
  for (const auto& [id, request] : requests_) {
    Expect(request.is_finished() || !request.lacks_capacity, "who can never fit ends at once");
  }
}

StepLimits CoreSimulation::DrawLimits() {
  const int32_t max_blocks = random_.OneIn(8) ? 400 : 64;
  StepLimits limits = {
      .num_blocks = random_.Between(2, random_.OneIn(2) ? 12 : max_blocks),
      .num_host_blocks = random_.OneIn(3) ? random_.Below(5) : random_.Between(5, 80),
      .block_size_tokens = 1 << random_.Below(4),
      .max_sequences = random_.Between(1, random_.OneIn(3) ? 24 : 8),
      .max_tokens_per_step = random_.Between(1, random_.OneIn(3) ? 8 : 40),
      .max_model_len = random_.Between(4, random_.OneIn(2) ? 40 : 200),
      .vocab_size = kVocabSize,
      .sliding_window = sliding_window_,
      .wants_next_blocks = wants_next_blocks_,
      .blocks_per_page = blocks_per_page_};
  if (is_tight_) {
    limits.num_blocks = 2 + limits.num_blocks % 6;
    limits.num_host_blocks += 8;
    limits.max_tokens_per_step =
        random_.OneIn(2) ? random_.Between(1, 6) : limits.max_tokens_per_step;
  }
  return limits;
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
