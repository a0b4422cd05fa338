// BuildBatch turns the slices of a plan into the flat arrays that kernels take. A slice is the next
// num_tokens tokens of one sequence, after the sequence's computed tokens. The input of a decode
// slice is the token that was sampled last.
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

// A slice and its sequence. The sequence's block table holds all blocks of the slice, except
// next_block_id.
struct ScheduledSlice {
  SequenceHandle handle = 0;
  int32_t num_tokens = 0;
  SequenceState* sequence = nullptr;
  // Number of the first place of the sequence's window; 0 without windows. A place is an address
  // range as long as a block (kv_windows.h).
  int64_t first_place = 0;
  // For a predicted slice: the block that will be appended to the sequence's block table before the
  // slice runs; kNullBlockId: none.
  BlockId next_block_id = kNullBlockId;

  // Returns true if the slice ends with the sequence's last token, so that the next one is sampled.
  bool is_sampled() const {
    return sequence->num_computed_tokens + num_tokens == sequence->num_known_tokens();
  }
};

// Where attention finds the blocks of a sequence.
enum class BlockLookup : uint8_t { kTables, kWindows };

// Fills `batch`. `lookup` decides whether block_tables or first_places are filled. logits_rows gets
// one row for each slice with is_sampled(), in order.
// REQUIRES: StepPlanChecker accepts a plan of these slices.
void BuildBatch(const std::vector<ScheduledSlice>& slices,
                int32_t block_size_tokens,
                BlockLookup lookup,
                Batch* batch);

}  // namespace quire

#endif  // QUIRE_WORKER_RUNTIME_BATCH_BUILDER_H_
