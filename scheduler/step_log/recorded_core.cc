#include "scheduler/step_log/recorded_core.h"

#include <utility>

namespace quire {

RecordedCore::RecordedCore(const CoreConfig& config, const Log& log)
    : core_(config), sink_(log.sink) {
  if (sink_ != nullptr) {
    sink_->Write(encoder_.Head(log.program_version));
  }
  Record(config);
}

void RecordedCore::BeginEpoch(uint64_t scheduler_incarnation,
                              uint64_t group_epoch,
                              const StepLimits& limits,
                              bool after_crash) {
  Record(EpochBegun{scheduler_incarnation, group_epoch, limits, after_crash});
  core_.BeginEpoch(scheduler_incarnation, group_epoch, limits, after_crash);
}

void RecordedCore::OnWorkersLost() {
  Record(WorkersLost{});
  core_.OnWorkersLost();
}

AddOutcome RecordedCore::AddRequest(Request request) {
  Record(request);
  const AddOutcome outcome = core_.AddRequest(std::move(request));
  Record(CallResult{static_cast<int64_t>(outcome)});
  return outcome;
}

bool RecordedCore::AbortRequest(RequestId id) {
  Record(RequestAborted{id});
  const bool was_live = core_.AbortRequest(id);
  Record(CallResult{was_live ? 1 : 0});
  return was_live;
}

bool RecordedCore::FinishSequence(RequestId id, int32_t sequence_index) {
  Record(SequenceStopped{id, sequence_index});
  const bool was_live = core_.FinishSequence(id, sequence_index);
  Record(CallResult{was_live ? 1 : 0});
  return was_live;
}

PinResult RecordedCore::PinPrefix(RequestId id,
                                  std::vector<TokenId> token_ids,
                                  std::string cache_salt) {
  Record(PinPrefixCalled{id, token_ids, cache_salt});
  const PinResult result = core_.PinPrefix(id, std::move(token_ids), std::move(cache_salt));
  Record(CallResult{static_cast<int64_t>(result.outcome)});
  return result;
}

bool RecordedCore::UnpinPrefix(RequestId id) {
  Record(PrefixUnpinned{id});
  const bool was_there = core_.UnpinPrefix(id);
  Record(CallResult{was_there ? 1 : 0});
  return was_there;
}

std::optional<StepPlan> RecordedCore::PlanStep(Instant now) {
  Record(PlanStepCalled{now});
  std::optional<StepPlan> plan = core_.PlanStep(now);
  if (sink_ != nullptr) {
    Record(plan.has_value() ? Summarize(*plan) : PlanMade{});
  }
  return plan;
}

void RecordedCore::ExpireRequests(Instant now) {
  Record(TimePassed{now});
  core_.ExpireRequests(now);
}

absl::Status RecordedCore::ApplyStepResult(const StepResult& result) {
  Record(result);
  absl::Status status = core_.ApplyStepResult(result);
  Record(CallResult{static_cast<int64_t>(status.code())});
  return status;
}

std::vector<OutputEvent> RecordedCore::TakeEvents() {
  std::vector<OutputEvent> events = core_.TakeEvents();
  if (sink_ != nullptr && !events.empty()) {
    Record(Summarize(events));
  }
  return events;
}

}  // namespace quire
