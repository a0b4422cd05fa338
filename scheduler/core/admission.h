// Admission decides whether a waiting group may start: never, later, or now.
//
// A group starts only when all its sequences can: with a handle each, and with blocks for all the
// tokens it already has, although its first slices may need fewer: what it does not take at once
// stays there for it, because a prompt that is cut has spent the budget of its step, and comes
// before newer groups in the next. A watermark stays free for the growth of running groups. When
// nothing runs there is nobody to keep blocks for, so whatever fits the pool starts.
//
// Where a sliding window frees blocks, a group never holds more than NumBlocksAtMost, however long
// its sequences become, and that many are asked for.
//
// Thread safety: free functions without state.
// Source:        PagedAttention, Kwon et al. 2023, section 4.5; the three answers are vLLM's.
#ifndef QUIRE_SCHEDULER_CORE_ADMISSION_H_
#define QUIRE_SCHEDULER_CORE_ADMISSION_H_

#include <cstdint>

#include "common/step/step_limits.h"
#include "scheduler/core/request.h"
#include "scheduler/core/sequence_group.h"

namespace quire {

enum class AllocStatus : uint8_t {
  kOk,
  kLater,  // when running groups have given back blocks or handles
  kNever,  // not under these limits, even alone
};

// What is there to start with.
struct Room {
  int32_t num_free_handles = 0;
  int32_t num_free_blocks = 0;
  int32_t num_watermark_blocks = 0;  // 0 when nothing runs
  // Of the group: others hold them, or several of its sequences share them.
  int32_t num_shared_blocks = 0;
};

// Whether a sequence of so many tokens can still get one more.
bool FitsContext(int64_t num_tokens, const StepLimits& limits);

// The most blocks that a sequence of num_tokens tokens holds in a step that computes
// num_step_tokens of them. Without a sliding window: all of them. With one of W tokens they reach
// from the window of the first of n tokens to the last: W - 1 + n tokens, which begin anywhere in a
// block, so ceil((W + n - 2) / B) + 1 blocks of B tokens. REQUIRES: num_step_tokens >= 1.
int32_t NumBlocksInStep(int32_t num_tokens, int32_t num_step_tokens, const StepLimits& limits);

// The most that num_sequences sequences hold at once while they grow to num_tokens tokens each: a
// step computes no more than max_tokens_per_step tokens of all of them together.
int64_t NumBlocksAtMost(int32_t num_sequences, int64_t num_tokens, const StepLimits& limits);

// The most that the group takes until all the tokens that it has are computed, when it need not
// take num_shared_blocks of all their blocks.
int64_t NumBlocksToCompute(const SequenceGroup& group,
                           int32_t num_shared_blocks,
                           const StepLimits& limits);

// Whether num_sequences sequences of full length can be held at once when nothing else runs.
bool FitsPool(const Request& request, int32_t num_sequences, const StepLimits& limits);

// Whether the group can be run to its full length, alone if need be. kNever is the contrary.
bool FitsEver(const SequenceGroup& group, const StepLimits& limits);

AllocStatus Admit(const SequenceGroup& group, const StepLimits& limits, const Room& room);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_ADMISSION_H_
