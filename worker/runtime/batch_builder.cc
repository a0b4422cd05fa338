#include "worker/runtime/batch_builder.h"

#include <algorithm>
#include <utility>

#include "common/base/math.h"

namespace quire {
namespace {

void Clear(Batch* batch) {
  batch->token_ids.clear();
  batch->positions.clear();
  batch->slot_mapping.clear();
  batch->query_start.assign(1, 0);
  batch->seq_lens.clear();
  batch->begins_in_prompt.clear();
  batch->block_tables.clear();
  batch->max_blocks_per_seq = 0;
  batch->shares_new_tokens = false;
  batch->first_places.clear();
  batch->logits_rows.clear();
  batch->num_candidates.clear();
}

int32_t SeqLen(const ScheduledSlice& slice) {
  return slice.sequence->num_computed_tokens + slice.num_tokens;
}

BlockId BlockAt(const ScheduledSlice& slice, int32_t index) {
  const std::vector<BlockId>& block_ids = slice.sequence->block_ids;
  return std::cmp_less(index, block_ids.size()) ? block_ids[static_cast<size_t>(index)]
                                                : slice.next_block_id;
}

void AppendTokens(const ScheduledSlice& slice, int32_t block_size_tokens, Batch* batch) {
  const SequenceState& sequence = *slice.sequence;
  int32_t end = SeqLen(slice);
  for (int32_t position = sequence.num_computed_tokens; position < end; ++position) {
    const BlockId block = BlockAt(slice, position / block_size_tokens);
    batch->token_ids.push_back(sequence.token_ids[static_cast<size_t>(position)]);
    batch->positions.push_back(position);
    batch->slot_mapping.push_back(int64_t{block} * block_size_tokens +
                                  position % block_size_tokens);
  }
  batch->query_start.push_back(batch->num_tokens());
  batch->seq_lens.push_back(end);
  batch->begins_in_prompt.push_back(sequence.num_computed_tokens < sequence.num_prompt_tokens ? 1
                                                                                              : 0);
  if (slice.is_sampled()) {
    batch->logits_rows.push_back(batch->num_tokens() - 1);
    batch->num_candidates.push_back(sequence.sampling_row().num_candidates());
  }
}

// Fills batch->block_tables. Leaves out the blocks after the block of a slice's last token, because
// no kernel reads those blocks.
void FillBlockTables(const std::vector<ScheduledSlice>& slices,
                     int32_t block_size_tokens,
                     Batch* batch) {
  auto stride = static_cast<size_t>(batch->max_blocks_per_seq);
  batch->block_tables.assign(slices.size() * stride, kNullBlockId);
  for (size_t row = 0; row < slices.size(); ++row) {
    const std::vector<BlockId>& block_ids = slices[row].sequence->block_ids;
    const auto count = static_cast<size_t>(DivCeil(SeqLen(slices[row]), block_size_tokens));
    BlockId* const to = batch->block_tables.data() + row * stride;
    std::copy_n(block_ids.data(), std::min(count, block_ids.size()), to);
    if (count > block_ids.size()) {
      to[block_ids.size()] = slices[row].next_block_id;
    }
  }
}

}  // namespace

void BuildBatch(const std::vector<ScheduledSlice>& slices,
                int32_t block_size_tokens,
                BlockLookup lookup,
                Batch* batch) {
  Clear(batch);
  for (const ScheduledSlice& slice : slices) {
    AppendTokens(slice, block_size_tokens, batch);
    batch->max_blocks_per_seq =
        std::max(batch->max_blocks_per_seq, DivCeil(SeqLen(slice), block_size_tokens));
  }
  if (lookup == BlockLookup::kTables) {
    FillBlockTables(slices, block_size_tokens, batch);
    return;
  }
  for (const ScheduledSlice& slice : slices) {
    batch->first_places.push_back(slice.first_place);
  }
}

}  // namespace quire
