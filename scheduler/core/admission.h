// Admission decides whether a waiting group may start: never, later, or now.
//
// A group starts only when all its sequences can: each needs a handle, and there must be blocks for
// all their known tokens. The first slices may take fewer blocks, but the rest stays free for the
// group: a prompt that is cut has spent the budget of its step, and is served before newer groups
// in the next step. A watermark of blocks stays free for the growth of running groups. If nothing
// runs, no blocks are kept for growth, and any group that fits the pool starts.
//
// With a sliding window a group never holds more than NumBlocksAtMost blocks, however long its
// sequences become, so admission asks for no more.
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
  kLater,  // once running groups have given back blocks or handles
  kNever,  // the group does not fit these limits, even alone
};

// Handles and blocks that a group may start with.
struct Room {
  int32_t num_free_handles = 0;
  int32_t num_free_blocks = 0;
  int32_t num_watermark_blocks = 0;  // 0 when nothing runs
  // Blocks of the group that others hold, or that several of its sequences share.
  int32_t num_shared_blocks = 0;
};

// Returns true if a sequence of num_tokens tokens can still get one more.
bool FitsContext(int64_t num_tokens, const StepLimits& limits);

// Upper bound on the blocks that a sequence of num_tokens tokens holds in a step that computes
// num_step_tokens of them. Without a sliding window: all its blocks. With a window of W tokens a
// step of n tokens touches W - 1 + n tokens, which begin anywhere in a block of B tokens: at most
// ceil((W + n - 2) / B) + 1 blocks. REQUIRES: num_step_tokens >= 1.
int32_t NumBlocksInStep(int32_t num_tokens, int32_t num_step_tokens, const StepLimits& limits);

// Upper bound on the blocks that num_sequences sequences hold at once while each grows to
// num_tokens tokens: a step computes at most max_tokens_per_step tokens of all of them together.
int64_t NumBlocksAtMost(int32_t num_sequences, int64_t num_tokens, const StepLimits& limits);

// Upper bound on the blocks that the group takes until all its known tokens are computed, if
// num_shared_blocks of them are shared and need not be taken.
int64_t NumBlocksToCompute(const SequenceGroup& group,
                           int32_t num_shared_blocks,
                           const StepLimits& limits);

// Returns true if num_sequences sequences of full length fit when nothing else runs.
bool FitsPool(const Request& request, int32_t num_sequences, const StepLimits& limits);

// Returns true if the group can run to its full length, alone if need be. If not, Admit returns
// kNever.
bool FitsEver(const SequenceGroup& group, const StepLimits& limits);

AllocStatus Admit(const SequenceGroup& group, const StepLimits& limits, const Room& room);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_ADMISSION_H_
