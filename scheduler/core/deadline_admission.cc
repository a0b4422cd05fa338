#include "scheduler/core/deadline_admission.h"

#include <algorithm>

#include "scheduler/core/step_bound.h"

namespace quire {
namespace {

using Work = CompletionEstimate::Work;
using Load = CompletionEstimate::Load;

// A client cancels its request at the deadline. The cancellation may arrive up to this long before
// the deadline passes on this machine's clock.
constexpr Instant kCancelSlack = 100 * kNanosPerMilli;

Instant NanosOf(double micros) {
  constexpr double kLongest = 1e12;  // twelve days: adding it to a time cannot overflow
  return static_cast<Instant>(std::min(micros, kLongest)) * kNanosPerMicro;
}

// Scales the prompt tokens down by the prefix cache's hit rate so far.
Work Uncached(const CoreState& state, Work work) {
  const CoreStats& counters = state.counters;
  if (counters.num_prefix_queried_tokens > 0) {
    work.num_prompt_tokens *= 1.0 - static_cast<double>(counters.num_prefix_hit_tokens) /
                                        static_cast<double>(counters.num_prefix_queried_tokens);
  }
  return work;
}

Work WorkOf(const CoreState& state, const Request& request, int64_t num_known_tokens) {
  return Uncached(state,
                  {.num_sequences = static_cast<double>(request.num_live_sequences()),
                   .num_prompt_tokens = static_cast<double>(num_known_tokens)});
}

double NumRunning(const CoreState& state) {
  double num_running = state.epoch->handles.num_in_use();
  for (const SequenceGroup* group : state.swapped) {
    num_running += group->num_live_sequences();
  }
  return num_running;
}

Load LoadOf(const CoreState& state, const Work& ahead, const Work& waiting) {
  const double num_running = NumRunning(state);
  const StepBound bound = BoundStep(state.config.target_inter_token,
                                    state.epoch->preemption_cost.steps(),
                                    static_cast<int32_t>(num_running),
                                    state.epoch->limits.max_tokens_per_step);
  return {.num_running = num_running,
          .ahead = ahead,
          .waiting = waiting,
          .num_prompt_tokens_by_step = static_cast<double>(bound.num_prompt_tokens)};
}

bool HasUsefulDeadline(const CoreState& state, const Request& request) {
  return request.deadline != kInfiniteFuture && !request.pins_prefix && state.epoch.has_value() &&
         state.completion.is_known() && state.epoch->preemption_cost.steps().most_tokens() > 0;
}

// Returns how many output tokens the least advanced live sequence can still get.
int32_t MaxTokensLeft(const SequenceGroup& group) {
  int32_t fewest = group.request().max_tokens;
  for (const Sequence& sequence : group.sequences()) {
    fewest = sequence.is_finished() ? fewest : std::min(fewest, sequence.num_output_tokens());
  }
  return group.request().max_tokens - fewest;
}

double RunMicros(const CoreState& state, const Work& own, int32_t max_tokens, const Load& load) {
  return state.completion.RunMicros(
      own, max_tokens, load, state.epoch->preemption_cost.steps(), state.epoch->limits);
}

double WaitMicros(const CoreState& state, const Work& own, const Load& load) {
  return state.completion.WaitMicros(
      own, load, state.epoch->preemption_cost.steps(), state.epoch->limits);
}

// Returns true if no request waits and all sequences of this request could run at once.
bool FindsRoom(const CoreState& state, const Request& request) {
  return state.waiting.empty() &&
         NumRunning(state) + request.num_live_sequences() <= state.epoch->limits.max_sequences;
}

// Returns true if the tenant has a trial: a request that was started although it seemed too late.
bool HasTrial(const CoreState& state, const std::string& tenant) {
  const auto is_trial = [&tenant](const SequenceGroup* group) {
    return group->estimate == DeadlineEstimate::kUnreachable && group->request().tenant == tenant;
  };
  return std::ranges::any_of(state.running, is_trial) ||
         std::ranges::any_of(state.swapped, is_trial);
}

}  // namespace

std::optional<DeadlineEstimate> AdmitByDeadline(const CoreState& state, const Request& request) {
  const bool has_output = !request.resumed.empty();  // the client has a part of the output already
  if (has_output || !HasUsefulDeadline(state, request)) {
    return DeadlineEstimate::kNone;
  }
  const Work own = WorkOf(state, request, request.num_prompt_tokens());
  const Load load = LoadOf(state,
                           Uncached(state, state.waiting.AheadOf(request)),
                           Uncached(state, state.waiting.work()));
  const double micros =
      WaitMicros(state, own, load) + RunMicros(state, own, request.max_tokens, load);
  if (std::max(state.now, request.arrival) + NanosOf(micros) <= request.deadline) {
    return DeadlineEstimate::kNone;
  }
  if (FindsRoom(state, request) && !HasTrial(state, request.tenant)) {
    return DeadlineEstimate::kUnreachable;
  }
  return std::nullopt;
}

bool CanStillMeetDeadline(const CoreState& state, SequenceGroup& first) {
  const Request& request = first.request();
  if (first.has_started() || !HasUsefulDeadline(state, request)) {
    return true;
  }
  const Work own = WorkOf(state, request, first.num_tokens_at_arrival());
  Work others = Uncached(state, state.waiting.work());
  others.num_sequences -= own.num_sequences;
  others.num_prompt_tokens -= own.num_prompt_tokens;
  const Load load = LoadOf(state, /*ahead=*/{}, others);
  const bool can_meet =
      state.now + NanosOf(RunMicros(state, own, MaxTokensLeft(first), load)) <= request.deadline;
  const bool is_idle = state.running.empty() && state.swapped.empty() && state.waiting.size() == 1;
  const bool is_trial = first.estimate == DeadlineEstimate::kUnreachable;
  first.estimate = can_meet ? DeadlineEstimate::kReachable : DeadlineEstimate::kUnreachable;
  return can_meet || is_idle || is_trial;
}

void OnSequenceEnd(CoreState& state,
                   const SequenceGroup& group,
                   int32_t num_output_tokens,
                   FinishReason reason) {
  const bool is_whole = reason == FinishReason::kStop || reason == FinishReason::kLength;
  const bool is_cut_off =
      reason == FinishReason::kExpiredRunning || reason == FinishReason::kAborted;
  if ((is_whole || is_cut_off) && !group.request().is_resumed && !group.request().pins_prefix) {
    state.completion.OnEnd(num_output_tokens, group.request().max_tokens, is_whole);
  }
}

void OnGroupEnd(CoreState& state, const SequenceGroup& group, FinishReason reason) {
  if (group.estimate == DeadlineEstimate::kNone || !group.has_started() ||
      group.request().is_resumed) {  // a resumed request is ignored, as in OnSequenceEnd
    return;
  }
  const bool is_met = reason == FinishReason::kStop || reason == FinishReason::kLength;
  Instant last_step_end = state.now;  // state.now is the time at which the last step began
  if (state.epoch.has_value()) {
    last_step_end +=
        NanosOf(state.epoch->preemption_cost.steps().StepMicros(state.epoch->handles.num_in_use()));
  }
  const bool is_cancelled_late =
      reason == FinishReason::kAborted && group.request().deadline <= last_step_end + kCancelSlack;
  const bool is_missed = is_cancelled_late || reason == FinishReason::kExpiredRunning;
  if (is_met || (is_missed && group.estimate == DeadlineEstimate::kReachable)) {
    state.completion.OnDeadline(group.request().max_tokens, is_met);
  }
}

int64_t QueueDrainMicros(const CoreState& state) {
  if (!state.epoch.has_value() || state.waiting.empty() || !state.completion.is_known()) {
    return 0;
  }
  const Work all = Uncached(state, state.waiting.work());
  const Load load = LoadOf(state, all, all);
  return NanosOf(WaitMicros(state, Work{.num_sequences = 0}, load)) / kNanosPerMicro;
}

}  // namespace quire
