// BuildBatch lays the slices of a plan out as the flat arrays that kernels want. Positions follow
// from what was computed before; the input of a decode slice is the token sampled last.
//
// Thread safety: a free function over its arguments.
// Cost:          O(tokens + blocks of the sliced sequences). Vectors of `batch` are reused.
#ifndef QUIRE_WORKER_RUNTIME_BATCH_BUILDER_H_
#define QUIRE_WORKER_RUNTIME_BATCH_BUILDER_H_

#include <cstdint>
#include <vector>

#include "worker/model/batch.h"
#include "worker/runtime/sequence_table.h"

namespace quire {

// A slice and its sequence, whose block table holds the slice's new blocks already.
struct ScheduledSlice {
  SequenceHandle handle = 0;
  int32_t num_tokens = 0;
  SequenceState* sequence = nullptr;
  int64_t first_place = 0;  // of its window, where there are any

  // The slice ends at the last known token, so its last row of logits becomes a token.
  bool is_sampled() const {
    return sequence->num_computed_tokens + num_tokens == sequence->num_known_tokens();
  }
};

// Where attention finds the blocks of a sequence.
enum class BlockLookup : uint8_t { kTables, kWindows };

// logits_rows holds one row for each sampled slice, in order. The batch has block tables or first
// places, not both.
// REQUIRES: the slices passed StepPlanChecker.
void BuildBatch(const std::vector<ScheduledSlice>& slices,
                int32_t block_size_tokens,
                BlockLookup lookup,
                Batch* batch);

}  // namespace quire

#endif  // QUIRE_WORKER_RUNTIME_BATCH_BUILDER_H_
