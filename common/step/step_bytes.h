// Upper bounds on the size of a step's message. An introduction makes a sequence known to a worker:
// it carries all known tokens, and the block ids of the computed tokens. The scheduler spreads
// introductions over steps, so that every plan within the agreed limits fits one message. If a plan
// within the limits might not fit, the limits are refused before a worker group's epoch begins.
//
// Thread safety: free functions, safe from any thread.
// Units:         bytes of v1::StepRequest (proto/v1/worker.proto).
#ifndef QUIRE_COMMON_STEP_STEP_BYTES_H_
#define QUIRE_COMMON_STEP_STEP_BYTES_H_

#include <cstdint>

#include "common/model/sampling_params.h"
#include "common/step/step_limits.h"

namespace quire {

// The longest message between scheduler and workers. The channel refuses longer ones.
inline constexpr int64_t kMaxStepBytes = int64_t{64} << 20;

// Budget for the bytes of all introductions of one step. Planning, encoding, sending and checking
// 512 KiB takes some 3 ms, which delays every stream of that step. This budget also bounds the work
// of attention, which the token budget (max_tokens_per_step) does not. For example, the prefix
// cache may hold all of a long sequence except the last token. That one token still attends to all
// others.
inline constexpr int64_t kIntroductionBudgetBytes = int64_t{512} << 10;

// Upper bound on the copies of a step that moves sequences to their own pages
// (StepLimits::blocks_per_page). 4,096 copies take 32 KiB of the message.
inline constexpr int32_t kMaxPageCopies = 4096;

// Returns an upper bound on the bytes of a SequenceIntroduction.
int64_t IntroductionBytes(int64_t num_tokens, int64_t num_blocks, const SamplingParams& sampling);

// Returns the bytes of the longest plan under these limits. The introductions of a plan take at
// most kIntroductionBudgetBytes plus two introductions of the longest sequence
// (scheduler/core/introduction_budget.h).
// REQUIRES: limits.block_size_tokens > 0.
int64_t MaxStepBytes(const StepLimits& limits);

}  // namespace quire

#endif  // QUIRE_COMMON_STEP_STEP_BYTES_H_
