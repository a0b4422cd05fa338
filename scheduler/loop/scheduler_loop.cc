#include "scheduler/loop/scheduler_loop.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "scheduler/core/admission.h"

namespace quire {
namespace {

constexpr int64_t kStallCheckIntervalNs = kNanosPerSecond;
constexpr int64_t kLoadingLogIntervalNs = 10 * kNanosPerSecond;
constexpr int64_t kProbeIntervalNs = 5 * kNanosPerSecond;
// The loop completes a turn at least this often, so that the liveness check can tell an idle loop
// from a stuck one.
constexpr absl::Duration kMaxIdleWait = absl::Seconds(1);

absl::Status RefusalOf(AddOutcome outcome) {
  switch (outcome) {
    case AddOutcome::kQueueFull:
      return Error(absl::StatusCode::kResourceExhausted,
                   "QUEUE_FULL",
                   "server: too many requests are waiting");
    case AddOutcome::kQueueTokensFull:
      return Error(absl::StatusCode::kResourceExhausted,
                   "QUEUE_TOKENS",
                   "server: too many prompt tokens are waiting");
    case AddOutcome::kTenantFull:
      return TenantLimitStatus();
    case AddOutcome::kDeadlineUnreachable:
      return DeadlineUnreachableStatus();
    case AddOutcome::kTooLong:
      return InvalidArgument("PROMPT_TOO_LONG", "prompt: leaves no room for output");
    case AddOutcome::kNeverFits:
      return InvalidArgument(
          "EXCEEDS_CAPACITY",
          "request: n sequences of prompt and max_tokens do not fit the KV cache");
    case AddOutcome::kQueued:
      break;
  }
  return absl::OkStatus();
}

int32_t NumTokens(const StepPlan& plan) {
  int32_t num_tokens = 0;
  for (const SequenceSlice& slice : plan.slices) {
    num_tokens += slice.num_tokens;
  }
  return num_tokens;
}

// Returns the times that a worker reported, each clamped to the step's round trip. A faulty worker
// can report anything, and a wrong value would stay in the sums for good.
StepTimings Within(int64_t round_trip_ns, const StepTimings& reported) {
  const int64_t most_us = std::max<int64_t>(0, round_trip_ns / kNanosPerMicro);
  const auto bounded = [most_us](int64_t us) { return std::clamp<int64_t>(us, 0, most_us); };
  return {.build_us = bounded(reported.build_us),
          .forward_us = bounded(reported.forward_us),
          .sample_us = bounded(reported.sample_us),
          .collective_us = bounded(reported.collective_us)};
}

// Formats 43520 as 43,520.
std::string WithCommas(int64_t number) {
  const std::string digits = absl::StrCat(number);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) {
      text += ',';
    }
    text += digits[i];
  }
  return text;
}

// Logs how many tokens fit the KV cache, in the words that users of vLLM search their logs for.
void LogCacheSize(const StepLimits& limits) {
  const int64_t num_blocks = limits.num_blocks - 1;
  LogInfo(absl::StrCat(
      "KV cache size: ", WithCommas(num_blocks * limits.block_size_tokens), " tokens"));
  LogInfo(absl::StrFormat("Maximum concurrency for %s tokens per request: %.2fx",
                          WithCommas(limits.max_model_len),
                          static_cast<double>(num_blocks) / static_cast<double>(NumBlocksAtMost(
                                                                1, limits.max_model_len, limits))));
}

// The stream of Probe's request. Drops all output, because Probe only needs the workers to answer.
class ProbeStream : public ResponseStream {
 public:
  bool Write(SequenceUpdate /*update*/, Instant /*now*/) override { return true; }
  void End(absl::Status /*status*/) override {}
  Instant stalled_since() const override { return kInfiniteFuture; }
};

}  // namespace

SchedulerLoop::SchedulerLoop(const LoopConfig& config, Parts parts)
    : config_(config),
      parts_(std::move(parts)),
      core_(config.core, parts_.step_log),
      watch_(parts_.clock),
      router_(parts_.observer),
      now_(parts_.clock()),
      wait_(now_) {
  if (parts_.on_cache_events != nullptr) {
    core_.KeepCacheEvents();
  }
}

void SchedulerLoop::Run() {
  while (Turn(kMaxIdleWait)) {
  }
}

bool SchedulerLoop::Turn(absl::Duration max_wait) {
  std::deque<LoopEvent> events = parts_.inbox->TakeAll(TimeToWait(max_wait));
  watch_.Begin();
  Work(events);
  watch_.Enter("free_events");
  events.clear();
  parts_.observer->OnTurn(watch_.End());
  return !stopping_;
}

void SchedulerLoop::Work(std::deque<LoopEvent>& events) {
  now_ = parts_.clock();
  // Expire requests before handling aborts: gRPC clients also cancel at their deadline, and such a
  // request must count as expired, not as cancelled.
  if (core_.next_deadline() <= now_) {
    core_.ExpireRequests(now_);
  }
  for (LoopEvent& event : events) {
    watch_.Enter(kLoopEventNames[event.index()]);
    std::visit([this](auto& e) { Handle(e); }, event);
  }
  watch_.Enter("timers");
  CheckTimers();
  watch_.Enter("plan");
  Dispatch();
  watch_.Enter("publish");
  Publish();
  PublishCacheEvents();
  watch_.Enter("stats");
  PublishStats();
  watch_.Enter("prefix_answers");
  // Answer operators after PublishStats, because they look at the metrics when their call returns.
  prefix_calls_.AnswerWaiting(core_, epoch_.has_value());
  watch_.Enter("state_answers");
  state_calls_.AnswerWaiting(core_, router_, step_totals_, swap_bytes_, now_);
}

// During a step the loop does not wake for deadlines: an expired request changes only the next
// plan.
absl::Duration SchedulerLoop::TimeToWait(absl::Duration max_wait) const {
  if (replan_) {
    return absl::ZeroDuration();
  }
  const Instant gives_up_at =
      has_given_up_ ? kInfiniteFuture : wait_.EndsAt(config_.worker_timeout_ns);
  const Instant wake_at =
      sent_.has_value() ? kInfiniteFuture : std::min(core_.next_deadline(), gives_up_at);
  if (wake_at == kInfiniteFuture) {
    return max_wait;
  }
  const int64_t wait_ns = std::max<int64_t>(0, wake_at - parts_.clock());
  return std::min(max_wait, absl::Nanoseconds(wait_ns));
}

void SchedulerLoop::Handle(AddRequest& add) {
  const RequestId id = add.request.id;
  const std::shared_ptr<ResponseStream> stream = add.stream;
  router_.Open(add.request, std::move(add.output), std::move(add.stream));
  if (refuse_with_.has_value() || stands_by_) {
    router_.Reject(id, refuse_with_.value_or(SupersededStatus()), now_);
    return;
  }
  // The request was accepted under the larger limit of an earlier group, and the client relies on
  // the accepted length. The core would silently cut the output to the present limit, so the loop
  // refuses the request.
  if (add.request.num_prompt_tokens() < limits_.max_model_len &&
      add.request.num_tokens_at_most() > limits_.max_model_len) {
    router_.Reject(id, NoCapacityStatus(), now_);
    return;
  }
  const AddOutcome outcome = core_.AddRequest(std::move(add.request));
  if (outcome != AddOutcome::kQueued) {
    router_.Reject(id, RefusalOf(outcome), now_);
    return;
  }
  stream->OnQueued();
}

void SchedulerLoop::Handle(AbortRequest& abort) { Abort(abort.id, abort.status); }

void SchedulerLoop::Handle(AbortAll& abort) {
  refuse_with_ = abort.status;
  AbortRequests(abort.status);
  prefix_calls_.FailAll(abort.status);
}

void SchedulerLoop::Handle(PinCall& call) {
  const bool waits_for_takeover = stands_by_ && call.waits_for_workers;
  if (refuse_with_.has_value() || (stands_by_ && !waits_for_takeover)) {
    call.answer(refuse_with_.value_or(SupersededStatus()));
    return;
  }
  prefix_calls_.Pin(core_, std::move(call), epoch_.has_value());
}

void SchedulerLoop::Handle(UnpinCall& call) { prefix_calls_.Unpin(core_, call); }

void SchedulerLoop::Handle(ListPrefixesCall& call) { call.answer(core_.prefixes()); }

void SchedulerLoop::Handle(GetStateCall& call) { state_calls_.Add(std::move(call)); }

void SchedulerLoop::Handle(GroupReady& ready) {
  if (epoch_.has_value()) {  // no GroupLost came for the previous epoch
    wait_.OnLost(now_, absl::UnavailableError("worker group: replaced"), core_.has_work());
    core_.OnWorkersLost();
    sent_.reset();
    parts_.observer->OnGroupLost();
  }
  const Instant begin = parts_.clock();
  core_.BeginEpoch(ready.scheduler_incarnation, ready.group_epoch, ready.limits, ready.after_crash);
  prefix_calls_.OnWorkersReady(core_);
  LogInfo("worker group ready",
          {{"epoch", absl::StrCat(ready.group_epoch)},
           {"blocks", absl::StrCat(ready.limits.num_blocks)},
           {"kv_cache_dtype", ready.kv_cache_dtype},
           {"max_model_len", absl::StrCat(ready.limits.max_model_len)},
           {"max_num_batched_tokens", absl::StrCat(ready.limits.max_tokens_per_step)},
           {"after_crash", ready.after_crash ? "yes" : "no"},
           {"begin_ms", absl::StrCat((parts_.clock() - begin) / kNanosPerMilli)}});
  if (ready.limits != limits_) {
    LogCacheSize(ready.limits);
  }
  if (config_.core.preemption_mode == PreemptionMode::kSwap && ready.limits.num_host_blocks == 0) {
    LogWarning("workers have no swap space (--swap-space), so preempted requests are recomputed");
  }
  epoch_ = ready.group_epoch;
  block_bytes_ = ready.block_bytes;
  limits_ = ready.limits;
  wait_.OnReady(now_);
  if (needs_answer_) {
    unproven_ = std::move(ready);
  } else {
    Announce(ready);
  }
}

void SchedulerLoop::Announce(const GroupReady& ready) {
  has_given_up_ = false;
  parts_.state->SetGroupReady(ready.limits, ready.numerics, ready.block_bytes);
  parts_.observer->OnGroupReady(ready.limits, ready.kv_cache_dtype, ready.block_bytes);
}

void SchedulerLoop::Handle(StepReply& reply) {
  if (!sent_.has_value() || !(reply.result.header == sent_->header)) {
    parts_.observer->OnStaleReply();
    return;
  }
  const Instant answered_at = parts_.clock();
  const absl::Status applied = core_.ApplyStepResult(reply.result);
  if (!applied.ok()) {
    FenceGroup(applied);
    return;
  }
  if (!reply.result.failed_swap_ins.empty()) {
    LogWarning("swapping blocks in from host memory failed; their requests are recomputed",
               {{"step_id", absl::StrCat(reply.result.header.step_id)},
                {"blocks", absl::StrCat(reply.result.failed_swap_ins.size())}});
  }
  StepObservation& step = sent_->observation;
  step.round_trip_ns = answered_at - sent_->sent_at;
  step.apply_ns = parts_.clock() - answered_at;
  step.worker = Within(step.round_trip_ns, reply.result.timings);
  step_totals_.Add(step);
  parts_.observer->OnStep(step);
  sent_.reset();
  // A step that samples no token proves nothing: the workers may still fail in every step that
  // samples.
  if (reply.result.sampled.empty()) {
    return;
  }
  wait_.OnTokens();
  needs_answer_ = false;
  if (unproven_.has_value()) {
    LogInfo("workers computed a token; the scheduler accepts requests again");
    Announce(*std::exchange(unproven_, std::nullopt));
  }
}

void SchedulerLoop::Handle(StaleReply& /*reply*/) { parts_.observer->OnStaleReply(); }

void SchedulerLoop::Handle(GroupLoading& loading) {
  wait_.OnLoading(now_);
  if (now_ >= next_loading_log_) {
    next_loading_log_ = now_ + kLoadingLogIntervalNs;
    LogInfo("worker is loading its model",
            {{"rank", absl::StrCat(loading.rank)},
             {"loaded_bytes", absl::StrCat(loading.loaded_bytes)},
             {"total_bytes", absl::StrCat(loading.total_bytes)}});
  }
}

void SchedulerLoop::Handle(GroupLost& lost) {
  if (epoch_ == lost.group_epoch) {
    FenceGroup(lost.status);
  }
}

void SchedulerLoop::Handle(GroupStandby& standby) {
  stands_by_ = standby.scheduler_incarnation != 0;
  if (stands_by_) {
    const bool is_cut_off = standby.scheduler_incarnation == kUnknownScheduler;
    LogWarning(
        is_cut_off ? "no worker can be reached; another scheduler may have the workers, so this "
                     "one stands by"
                   : "another scheduler has the workers; this one stands by",
        {{"its_incarnation", is_cut_off ? "unknown" : absl::StrCat(standby.scheduler_incarnation)},
         {"ended_requests", absl::StrCat(router_.num_open())}});
    wait_.Stop();
    needs_answer_ = false;
    AbortRequests(SupersededStatus());
    prefix_calls_.FailWaiting(SupersededStatus());
  } else {
    LogInfo(
        "no scheduler has the workers any more; this one takes them over once all are reachable");
    wait_.Restart(now_);
  }
  has_given_up_ = false;
  parts_.state->SetGroup(stands_by_ ? ServingState::Group::kStandby
                                    : ServingState::Group::kNeverReady);
  parts_.observer->OnStandby(stands_by_);
}

void SchedulerLoop::Handle(Stop& /*stop*/) {
  AbortAll abort{Error(absl::StatusCode::kUnavailable, "DRAINING", "server: is shutting down")};
  Handle(abort);
  stopping_ = true;
}

void SchedulerLoop::Dispatch() {
  replan_ = false;
  if (core_.has_unanswered_plan()) {
    return;
  }
  const Instant start = parts_.clock();
  std::optional<StepPlan> plan = core_.PlanStep(now_);
  if (!plan.has_value()) {
    return;
  }
  const Instant sent_at = parts_.clock();
  router_.OnStarted(core_.started(), sent_at);
  SentStep step;
  step.header = plan->header;
  step.sent_at = sent_at;
  step.observation.plan_ns = sent_at - start;
  step.observation.num_sequences = static_cast<int32_t>(plan->slices.size());
  step.observation.num_tokens = NumTokens(*plan);
  sent_ = step;
  watch_.Enter("send");
  parts_.workers->SendStep(*plan);
  sent_->observation.send_ns = parts_.clock() - sent_at;
}

void SchedulerLoop::Publish() {
  const Instant start = parts_.clock();
  for (;;) {
    const std::vector<OutputEvent> events = core_.TakeEvents();
    if (events.empty()) {
      break;
    }
    const OutputRouter::Published published = router_.Publish(events, start);
    replan_ |= !sent_.has_value() && !(published.stopped.empty() && published.overflowed.empty());
    for (const OutputRouter::SequenceRef& stopped : published.stopped) {
      core_.FinishSequence(stopped.request_id, stopped.sequence_index);
    }
    for (RequestId id : published.overflowed) {
      core_.AbortRequest(id);
    }
  }
  if (sent_.has_value()) {
    sent_->observation.publish_ns += parts_.clock() - start;
  }
}

void SchedulerLoop::PublishCacheEvents() {
  if (parts_.on_cache_events == nullptr) {
    return;
  }
  std::vector<CacheEvent> events = core_.TakeCacheEvents();
  if (!events.empty()) {
    parts_.on_cache_events(std::move(events));
  }
}

// The core counts a block as swapped when it plans the swap, and each turn calls PublishStats after
// it has planned. So all blocks counted since the last call belong to the present group and have
// block_bytes_ bytes.
void SchedulerLoop::PublishStats() {
  const CoreStats stats = core_.stats();
  swap_bytes_.Add(stats_, stats, block_bytes_);
  stats_ = stats;
  parts_.state->SetStats(stats, swap_bytes_, static_cast<int32_t>(router_.num_open()), now_);
  parts_.observer->OnStats(stats, swap_bytes_);
}

void SchedulerLoop::CheckTimers() {
  const bool has_probe_failed = needs_answer_ && !epoch_.has_value();
  if (has_probe_failed || wait_.EndsAt(config_.worker_timeout_ns) <= now_) {
    GiveUp();
  }
  if (unproven_.has_value() && !core_.has_work() && now_ >= next_probe_) {
    next_probe_ = now_ + kProbeIntervalNs;
    Probe();
  }
  if (now_ >= next_stall_check_) {
    next_stall_check_ = now_ + kStallCheckIntervalNs;
    for (RequestId id : router_.FindStalled(now_ - config_.slow_consumer_ns)) {
      Abort(id, SlowConsumerStatus());
    }
  }
}

void SchedulerLoop::GiveUp() {
  const int32_t num_failed = wait_.num_failed_epochs();
  // A single failed epoch does not show that all groups fail: perhaps the next group is only late.
  // So after a single failure, the next group is announced (Announce) as soon as it is ready.
  needs_answer_ = needs_answer_ || num_failed > 1;
  const absl::Status status =
      needs_answer_ ? Error(absl::StatusCode::kUnavailable,
                            "WORKERS_FAIL",
                            absl::StrCat("server: the workers were lost ",
                                         num_failed,
                                         " times in a row before they computed a token"))
                    : Error(absl::StatusCode::kUnavailable,
                            "WORKER_TIMEOUT",
                            "server: --worker-timeout has passed without a ready worker group");
  if (!std::exchange(has_given_up_, true)) {
    LogError("the wait for workers timed out; open requests end and new ones are refused",
             {{"reason", ReasonOf(status)},
              {"failed_epochs", absl::StrCat(num_failed)},
              {"cause", wait_.cause().ToString()}});
  }
  parts_.state->SetGroup(ServingState::Group::kGivenUp);
  AbortRequests(status);
  prefix_calls_.FailWaiting(status);
}

// Requests one token from a group that has given no token yet (unproven_) and has no other work.
void SchedulerLoop::Probe() {
  AddRequest probe{.request = {.prompt_token_ids = {0}, .max_tokens = 1},
                   .output = {},
                   .stream = std::make_shared<ProbeStream>()};
  probe.request.sampling.temperature = 0.0F;
  probe.request.bypasses_prefix_cache = true;
  const absl::StatusOr<RequestId> added = parts_.inbox->Add(std::move(probe));
  if (!added.ok()) {
    LogWarning("cannot probe the workers", {{"cause", added.status().ToString()}});
  }
}

void SchedulerLoop::Abort(RequestId id, const absl::Status& status) {
  router_.SetAbortStatus(id, status);
  core_.AbortRequest(id);
}

void SchedulerLoop::AbortRequests(const absl::Status& status) {
  for (RequestId id : router_.OpenRequests()) {
    Abort(id, status);
  }
}

void SchedulerLoop::FenceGroup(const absl::Status& cause) {
  LogWarning("worker group lost", {{"epoch", absl::StrCat(*epoch_)}, {"cause", cause.ToString()}});
  parts_.workers->AbandonEpoch(*epoch_);
  wait_.OnLost(now_, cause, core_.has_work());
  core_.OnWorkersLost();
  epoch_.reset();
  sent_.reset();
  unproven_.reset();
  if (!has_given_up_) {
    parts_.state->SetGroup(ServingState::Group::kLost);
  }
  parts_.observer->OnGroupLost();
}

}  // namespace quire
