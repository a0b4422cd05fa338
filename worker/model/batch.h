// Batch is one step's work in the form that kernels take: flat arrays over tokens and sequences.
// runtime/batch_builder builds it from a StepPlan.
//
// Thread safety: a value type; vectors are reused from step to step.
// Invariants:    query_start.front() == 0, query_start.back() == token_ids.size();
//                every slot and block id is inside the pool; positions[i] < max_model_len.
#ifndef QUIRE_WORKER_MODEL_BATCH_H_
#define QUIRE_WORKER_MODEL_BATCH_H_

#include <cstdint>
#include <vector>

#include "common/base/ids.h"

namespace quire {

struct Batch {
  std::vector<TokenId> token_ids;     // [num_tokens]
  std::vector<int32_t> positions;     // [num_tokens]
  std::vector<int64_t> slot_mapping;  // [num_tokens], block_id * block_size_tokens + offset
  std::vector<int32_t> query_start;   // [num_seqs + 1]
  std::vector<int32_t> seq_lens;      // [num_seqs], tokens of the context, this step's included
  std::vector<BlockId> block_tables;  // [num_seqs, max_blocks_per_seq], kNullBlockId padding
  int32_t max_blocks_per_seq = 0;     // blocks of the longest context
  bool shares_new_tokens = false;     // as in StepInputs
  // [num_seqs]: number of the first place of each sequence's window. A place is an address range as
  // long as a block (kv_windows.h). If first_places is not empty, attention uses it instead of
  // block_tables.
  std::vector<int64_t> first_places;
  std::vector<uint8_t> begins_in_prompt;  // [num_seqs], or empty, as in StepInputs
  std::vector<int32_t> logits_rows;       // [num_logits], token indexes whose logits are wanted
  // [num_logits], how many of a row's greatest logits are wanted (SamplingRow::num_candidates); 0:
  // all logits of the row. An empty vector: all logits of every row.
  std::vector<int32_t> num_candidates;

  int32_t num_tokens() const { return static_cast<int32_t>(token_ids.size()); }
  int32_t num_seqs() const { return static_cast<int32_t>(seq_lens.size()); }

  friend bool operator==(const Batch&, const Batch&) = default;
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_BATCH_H_
