// CoreConfig is what an operator decides about the core; StepLimits is what the workers can do.
//
// Thread safety: a value type.
#ifndef QUIRE_SCHEDULER_CORE_CORE_CONFIG_H_
#define QUIRE_SCHEDULER_CORE_CORE_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/sip_hash.h"
#include "common/step/step_bytes.h"

namespace quire {

// What happens to what a preempted request had computed.
enum class PreemptionMode : uint8_t {
  kRecompute,  // it is dropped and computed again
  kSwap,       // its blocks go to host memory and come back; dropped when there is no room
  kAuto,       // the cheaper of the two by what they were measured to take, for the cheapest group
};

// "recompute", "swap", "auto"; nothing for any other name.
std::optional<PreemptionMode> ParsePreemptionMode(std::string_view name);

// Who is served first: see scheduling_policy.h.
enum class SchedulingPolicyKind : uint8_t { kFcfs, kPriority, kFairShare };

// As CoreConfig::target_inter_token: three times what a step without prompts takes.
inline constexpr Instant kAutoInterToken = 0;

struct CoreConfig {
  int32_t max_queued_requests = 1024;
  int64_t max_queued_tokens = 1'000'000;  // prompt tokens of waiting requests
  // Waiting requests of a scheduler before, beside the above: what it had in its queue, and twice
  // what it had under way, as waiting_queue.h says. Of their tokens max_queued_tokens may wait, and
  // twice a full step's sequences of the longest.
  int64_t max_resumed_requests = 1536;
  // Blocks kept free when a waiting request is admitted, so that running ones can grow a while
  // before somebody must be preempted. A fraction of the pool, in [0, 1).
  double watermark = 0.01;
  SchedulingPolicyKind scheduling_policy = SchedulingPolicyKind::kFcfs;
  // Under kPriority: how long a request waits to be worth one priority level more.
  Instant priority_ageing = 10 * kNanosPerSecond;
  // While sequences decode, prompts get as many tokens of a step as leave it about so long, by what
  // steps took lately (step_bound.h). kInfiniteFuture: as many as the step has room for. >= 0.
  Instant target_inter_token = kInfiniteFuture;
  // Bounds the introductions of one step (introduction_budget.h). > 0.
  int64_t introduction_budget_bytes = kIntroductionBudgetBytes;
  PreemptionMode preemption_mode = PreemptionMode::kRecompute;
  // Whether a request begins with blocks that another one of the same salt has computed. Sequences
  // of one request share blocks in any case.
  bool prefix_caching = false;
  // Of the pool, the most that pinned prefixes may hold. A fraction in [0, 1).
  double max_pinned_share = 0.5;
  Hash128 block_hash_key;  // secret, drawn once per process
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_CORE_CONFIG_H_
