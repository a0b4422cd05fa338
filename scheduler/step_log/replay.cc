#include "scheduler/step_log/replay.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/step/step_plan_check.h"
#include "scheduler/core/beam_search.h"
#include "scheduler/core/scheduler_core.h"
#include "scheduler/step_log/step_log_record.h"

namespace quire {
namespace {

// Upper bound on the sequences of a request, so that a forged log cannot exhaust memory. No server
// accepts a request with more sequences.
constexpr int32_t kMaxSequencesPerRequest = kMaxSequencesLimit;

std::string Describe(const CallResult& answered) { return absl::StrCat(answered.value); }

std::string Describe(const PlanMade& made) {
  if (made == PlanMade{}) {
    return "no plan";
  }
  return absl::StrFormat(
      "step %d of epoch %d: %d swaps out, %d swaps in, %d copies, %d introductions, %d slices of "
      "%d tokens, %d releases, digest %016x",
      made.step_id,
      made.group_epoch,
      made.num_swap_outs,
      made.num_swap_ins,
      made.num_copies,
      made.num_introductions,
      made.num_slices,
      made.num_tokens,
      made.num_releases,
      made.digest);
}

std::string Describe(const EventsTaken& taken) {
  return absl::StrFormat(
      "%d tokens, %d ends, digest %016x", taken.num_tokens, taken.num_finished, taken.digest);
}

absl::Status Impossible(std::string_view what) {
  return Error(absl::StatusCode::kDataLoss, "STEP_LOG", what);
}

// Returns true if the request meets all REQUIRES of SchedulerCore::AddRequest that do not depend on
// the core's state.
bool IsAcceptable(const Request& request) {
  if (request.prompt_token_ids.empty() || request.max_tokens < 1 || request.num_sequences < 1 ||
      request.num_sequences > kMaxSequencesPerRequest || request.pins_prefix ||
      !IsResumable(request)) {
    return false;
  }
  if (!request.beam_search.has_value()) {
    return true;
  }
  const BeamSearchParams params{
      .num_beams = request.beam_search->num_beams,
      .num_hypotheses = request.num_sequences,
      .length_penalty = request.beam_search->length_penalty,
      .early_stopping = request.beam_search->early_stopping,
      .max_tokens = request.max_tokens,
      .min_tokens = std::min(request.sampling.min_tokens, request.max_tokens),
      .stop_token_ids = request.stop_token_ids};
  return CheckBeamSearchParams(params).ok() &&
         request.sampling.num_logprobs >= params.num_candidates();
}

// Feeds records to the core, one by one. Checks the REQUIRES of the core before each call, because
// the core trusts its caller and the log can be forged.
class Replayer {
 public:
  explicit Replayer(ReplayReport* report) : report_(*report) {}

  absl::Status Feed(StepLogRecord record) {
    if (core_.has_value() == std::holds_alternative<CoreConfig>(record)) {
      return Impossible("the core's configuration must be the first record and occur once");
    }
    return std::visit([this](auto& r) { return On(r); }, record);
  }

 private:
  absl::Status On(const CoreConfig& config) {
    if (!(config.watermark >= 0.0 && config.watermark < 1.0)) {
      return Impossible("the watermark must be in [0, 1)");
    }
    if (config.priority_ageing < 0) {
      return Impossible("priority_ageing must not be negative");
    }
    if (config.target_inter_token < 0) {
      return Impossible("target_inter_token must not be negative");
    }
    core_.emplace(config);
    return absl::OkStatus();
  }

  absl::Status On(const EpochBegun& begun) {
    if (has_epoch_) {
      return Impossible("an epoch begins before the last one ended");
    }
    QUIRE_RETURN_IF_ERROR(Validate(begun.limits));
    has_epoch_ = true;
    ++report_.num_epochs;
    core_->BeginEpoch(
        begun.scheduler_incarnation, begun.group_epoch, begun.limits, begun.after_crash);
    return absl::OkStatus();
  }

  absl::Status On(const WorkersLost& /*lost*/) {
    has_epoch_ = false;
    core_->OnWorkersLost();
    return absl::OkStatus();
  }

  absl::Status On(Request& request) {
    if (last_id_.has_value() && !(*last_id_ < request.id)) {
      return Impossible("the id of a request must be higher than all earlier ids");
    }
    if (!IsAcceptable(request)) {
      return Impossible("a request has fields that no server accepts");
    }
    const RequestId id = request.id;
    const AddOutcome outcome = core_->AddRequest(std::move(request));
    if (outcome == AddOutcome::kQueued) {
      last_id_ = id;
      ++report_.num_requests;
    }
    answer_ = CallResult{static_cast<int64_t>(outcome)};
    return absl::OkStatus();
  }

  absl::Status On(const RequestAborted& aborted) {
    answer_ = CallResult{core_->AbortRequest(aborted.id) ? 1 : 0};
    return absl::OkStatus();
  }

  absl::Status On(const SequenceStopped& stopped) {
    answer_ = CallResult{core_->FinishSequence(stopped.id, stopped.sequence_index) ? 1 : 0};
    return absl::OkStatus();
  }

  absl::Status On(const PinPrefixCalled& wanted) {
    const bool is_newer = !last_id_.has_value() || *last_id_ < wanted.id;
    if (!is_newer || wanted.token_ids.empty()) {
      return Impossible("a pinned prefix must have tokens, and an id higher than all earlier ids");
    }
    const PinResult result = core_->PinPrefix(wanted.id, wanted.token_ids, wanted.cache_salt);
    if (result.outcome == PinOutcome::kAccepted) {
      last_id_ = wanted.id;
    }
    answer_ = CallResult{static_cast<int64_t>(result.outcome)};
    return absl::OkStatus();
  }

  absl::Status On(const PrefixUnpinned& unpinned) {
    answer_ = CallResult{core_->UnpinPrefix(unpinned.id) ? 1 : 0};
    return absl::OkStatus();
  }

  absl::Status On(const PlanStepCalled& wanted) {
    if (core_->has_unanswered_plan()) {
      return Impossible("a plan is requested before the result of the previous plan");
    }
    const std::optional<StepPlan> plan = core_->PlanStep(wanted.now);
    plan_ = plan.has_value() ? Summarize(*plan) : PlanMade{};
    report_.num_steps += plan.has_value() ? 1 : 0;
    return absl::OkStatus();
  }

  absl::Status On(const TimePassed& passed) {
    core_->ExpireRequests(passed.now);
    return absl::OkStatus();
  }

  absl::Status On(const StepResult& result) {
    answer_ = CallResult{static_cast<int64_t>(core_->ApplyStepResult(result).code())};
    return absl::OkStatus();
  }

  absl::Status On(const CallResult& answered) {
    return Compare("the answer of the core", answered, answer_);
  }

  absl::Status On(const PlanMade& made) { return Compare("the plan", made, plan_); }

  absl::Status On(const EventsTaken& taken) {
    const EventsTaken replayed = Summarize(core_->TakeEvents());
    report_.num_tokens += replayed.num_tokens;
    return Compare("the output", taken, std::make_optional(replayed));
  }

  // Compares a logged outcome with the replayed outcome (nullopt if no call came before). Clears
  // both answer_ and plan_, since a call has only one outcome.
  template <typename T>
  absl::Status Compare(std::string_view what, const T& logged, std::optional<T> replayed) {
    if (!replayed.has_value()) {
      return Impossible("a result has no preceding call");
    }
    answer_.reset();
    plan_.reset();
    if (logged != *replayed) {
      report_.difference = absl::StrCat(ToAbsl(what),
                                        " differs after ",
                                        report_.num_steps,
                                        " steps\n  logged    ",
                                        Describe(logged),
                                        "\n  replayed  ",
                                        Describe(*replayed));
    }
    return absl::OkStatus();
  }

  ReplayReport& report_;
  std::optional<SchedulerCore> core_;
  bool has_epoch_ = false;
  std::optional<RequestId> last_id_;
  std::optional<CallResult> answer_;  // outcome of the last call; Compare clears it
  std::optional<PlanMade> plan_;      // plan of the last call; Compare clears it
};

}  // namespace

ReplayReport Replay(StepLogReader& log) {
  ReplayReport report;
  Replayer replayer(&report);
  while (report.is_identical()) {
    absl::StatusOr<std::optional<StepLogRecord>> record = log.Next();
    report.num_records = log.num_records();
    if (!record.ok()) {
      report.damage = record.status();
    } else if (!record->has_value()) {
      report.is_torn = log.is_torn();
      break;
    } else {
      report.damage = replayer.Feed(**std::move(record));
    }
  }
  return report;
}

}  // namespace quire
