// Admission decides whether a waiting group may start: never, later, or now.
//
// A group starts only when all its sequences can start: each needs a handle, and there must be
// blocks for all known tokens of the group. If the first step computes only a part of a prompt, the
// group takes only the blocks of that part. The planner keeps blocks free for the rest of the
// prompt (step_planner.h), so no newer group can start by taking these blocks. A number of blocks
// (the watermark) also stays free, so that running groups can grow. If nothing runs, the watermark
// is 0, and any group that fits the pool starts.
//
// With a sliding window a group never holds more than NumBlocksAtMost blocks, however long its
// sequences become, so admission asks for no more.
//
// Thread safety: free functions, safe from any thread.
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
  kLater,  // the group can start when running groups have given back blocks or handles
  kNever,  // the group does not fit these limits, even alone
};

// Handles and blocks that are available to a group that is to start.
struct Room {
  int32_t num_free_handles = 0;
  int32_t num_free_blocks = 0;
  int32_t num_watermark_blocks = 0;  // kept free for running groups; 0 if no group runs
  // Blocks of the starting group that need not be taken from the pool, because other groups hold
  // them or the group's sequences share them.
  int32_t num_shared_blocks = 0;
};

// Returns true if a sequence of num_tokens tokens can still get one more token.
bool FitsContext(int64_t num_tokens, const StepLimits& limits);

// Upper bound on the blocks that a sequence of num_tokens tokens holds in a step that computes
// num_step_tokens of them. Without a sliding window, the bound counts all blocks of the sequence.
// With a window of W tokens, a step of n tokens also reads the W - 1 tokens before them. These
// W - 1 + n tokens may begin anywhere in a block of B tokens. So they lie in at most
// ceil((W + n - 2) / B) + 1 blocks. REQUIRES: num_step_tokens >= 1.
int32_t NumBlocksInStep(int32_t num_tokens, int32_t num_step_tokens, const StepLimits& limits);

// Upper bound on the blocks that num_sequences sequences hold at once while each grows to
// num_tokens tokens. A step computes at most max_tokens_per_step tokens of all sequences together.
int64_t NumBlocksAtMost(int32_t num_sequences, int64_t num_tokens, const StepLimits& limits);

// Upper bound on the blocks that the group takes from the pool until all its known tokens are
// computed. num_shared_blocks of its blocks are shared and need not be taken.
int64_t NumBlocksToCompute(const SequenceGroup& group,
                           int32_t num_shared_blocks,
                           const StepLimits& limits);

// Returns true if num_sequences sequences of full length fit the limits while nothing else runs.
bool FitsPool(const Request& request, int32_t num_sequences, const StepLimits& limits);

// Returns true if the group can run to its full length, at least while nothing else runs. If not,
// Admit returns kNever.
bool FitsEver(const SequenceGroup& group, const StepLimits& limits);

AllocStatus Admit(const SequenceGroup& group, const StepLimits& limits, const Room& room);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_ADMISSION_H_
