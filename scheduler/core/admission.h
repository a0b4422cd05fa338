// Admission decides whether a waiting group may start: never, later, or now.
//
// A group starts only when all its sequences can: with a handle each, and with blocks for all the
// tokens it already has, although its first slices may need fewer: what it does not take at once
// stays there for it, because a prompt that is cut has spent the budget of its step, and comes
// before newer groups in the next. A watermark stays free for the growth of running groups. When
// nothing runs there is nobody to keep blocks for, so whatever fits the pool starts.
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

// Whether num_sequences sequences can run to their end together when nothing else runs.
bool FitsPool(const Request& request, int32_t num_sequences, const StepLimits& limits);

// Whether the group can be run to its end, alone if need be. kNever is the contrary.
bool FitsEver(const SequenceGroup& group, const StepLimits& limits);

AllocStatus Admit(const SequenceGroup& group, const StepLimits& limits, const Room& room);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_ADMISSION_H_
