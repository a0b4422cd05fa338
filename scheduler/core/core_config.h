// CoreConfig holds the operator's settings of the core; StepLimits holds the limits of the workers.
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

// Decides what happens to the blocks of a preempted request.
enum class PreemptionMode : uint8_t {
  kRecompute,  // blocks are dropped, and their tokens are computed again
  kSwap,       // blocks are copied to host memory and back, or dropped if host memory has no room
  kAuto,       // the cheaper of these two ways; the group to preempt is chosen by cost too
};

// Parses "recompute", "swap" or "auto". Returns nullopt for any other name.
std::optional<PreemptionMode> ParsePreemptionMode(std::string_view name);

// The order of service: see scheduling_policy.h.
enum class SchedulingPolicyKind : uint8_t { kFcfs, kPriority, kFairShare };

// Value of CoreConfig::target_inter_token that stands for three times the duration of a decode
// step.
inline constexpr Instant kAutoInterToken = 0;

struct CoreConfig {
  int32_t max_queued_requests = 1024;
  int64_t max_queued_tokens = 1'000'000;  // prompt tokens of waiting requests
  // Bounds the number of waiting resumed requests (an earlier scheduler had accepted them). They do
  // not count against max_queued_requests. The default has room for the earlier scheduler's queue
  // and twice its running sequences: 1024 + 2 * 256 (waiting_queue.h). The tokens of resumed
  // requests are bounded by max_queued_tokens + 2 * max_sequences * max_model_len.
  int64_t max_resumed_requests = 1536;
  // Share of the pool, in [0, 1), that must stay free when a waiting request is admitted. So
  // running requests can grow for a while without a preemption.
  double watermark = 0.01;
  SchedulingPolicyKind scheduling_policy = SchedulingPolicyKind::kFcfs;
  // Under kPriority: a request that has waited this long is served before new requests whose
  // priority is better by one.
  Instant priority_ageing = 10 * kNanosPerSecond;
  // Target duration of a step while sequences decode. To keep it, a step may have only as many
  // prompt tokens as recent step times allow (step_bound.h). kInfiniteFuture: no target.
  // REQUIRES: >= 0.
  Instant target_inter_token = kInfiniteFuture;
  // Bounds the bytes of the introductions in one step, which make sequences known to the workers
  // (introduction_budget.h). REQUIRES: > 0.
  int64_t introduction_budget_bytes = kIntroductionBudgetBytes;
  PreemptionMode preemption_mode = PreemptionMode::kRecompute;
  // Whether requests with the same cache_salt share computed blocks of common prefixes. Sequences
  // of one request always share blocks.
  bool prefix_caching = false;
  // Share of the pool, in [0, 1), that pinned prefixes may hold at most.
  double max_pinned_share = 0.5;
  Hash128 block_hash_key;  // secret, drawn once per process
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_CORE_CONFIG_H_
