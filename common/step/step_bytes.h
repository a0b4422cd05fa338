// How many bytes a step's message can have. The scheduler spreads introductions over steps so that
// no plan within agreed limits is longer than a message may be; limits that would allow one are
// refused before an epoch begins.
//
// Thread safety: free functions, safe from any thread.
// Units:         bytes of v1::StepRequest (proto/v1/worker.proto), counted from above.
#ifndef QUIRE_COMMON_STEP_STEP_BYTES_H_
#define QUIRE_COMMON_STEP_STEP_BYTES_H_

#include <cstdint>

#include "common/model/sampling_params.h"
#include "common/step/step_limits.h"

namespace quire {

// The longest message between scheduler and workers. More is refused by the channel.
inline constexpr int64_t kMaxStepBytes = int64_t{64} << 20;

// Introductions of one step together. To plan, encode, send and check 512 KiB takes some 3 ms,
// which every stream of that step waits for. Sequences that begin with cached tokens compute one
// token each, over all of their context, so the budget bounds that too.
inline constexpr int64_t kIntroductionBudgetBytes = int64_t{512} << 10;

// Returns the most bytes of a SequenceIntroduction with so many tokens and blocks.
int64_t IntroductionBytes(int64_t num_tokens, int64_t num_blocks, const SamplingParams& sampling);

// Returns the bytes of the longest plan under these limits, whose introductions take
// kIntroductionBudgetBytes and two of the longest (introduction_budget.h).
// REQUIRES: limits.block_size_tokens > 0.
int64_t MaxStepBytes(const StepLimits& limits);

}  // namespace quire

#endif  // QUIRE_COMMON_STEP_STEP_BYTES_H_
