// StepInputs are the flat arrays of one step as operations read them. The shapes of a step are
// defined here alone.
//
// Thread safety: a value type; it owns nothing.
// Invariants:    query_start is ascending from 0 to num_tokens. The caller of BeginStep has checked
//                every id.
#ifndef QUIRE_KERNELS_API_STEP_INPUTS_H_
#define QUIRE_KERNELS_API_STEP_INPUTS_H_

#include <cstdint>

#include "common/base/ids.h"

namespace quire {

// Upper bound on the padding rows that BeginStep adds to each of tokens, sequences and logits.
inline constexpr int32_t kMaxPaddingRows = 32;

// Upper bounds on a step, without padding. Before the first step, memory is reserved for a step of
// this size.
struct StepBounds {
  int32_t max_tokens = 0;
  int32_t max_seqs = 0;            // sequences of a step, and rows of logits
  int32_t max_context_tokens = 0;  // tokens of one sequence
  int32_t max_blocks_per_seq = 0;  // blocks of one sequence

  friend bool operator==(const StepBounds&, const StepBounds&) = default;
};

struct StepInputs {
  int32_t num_tokens = 0;
  int32_t num_seqs = 0;
  int32_t num_logits = 0;
  int32_t max_blocks_per_seq = 0;  // blocks of the longest context
  // Must be true if a block before a sequence's new tokens may hold new tokens of another sequence
  // of this step. Otherwise a kernel may read the block before the step has written it.
  bool shares_new_tokens = false;
  const TokenId* token_ids = nullptr;     // [num_tokens]
  const int32_t* positions = nullptr;     // [num_tokens]
  const int64_t* slot_mapping = nullptr;  // [num_tokens], block_id * block_size_tokens + offset
  // [num_seqs + 1]: index of each sequence's first token; the last element is num_tokens.
  const int32_t* query_start = nullptr;
  const int32_t* seq_lens = nullptr;  // [num_seqs], tokens of the context, this step's included
  // [num_seqs, max_blocks_per_seq], padded with kNullBlockId.
  const BlockId* block_tables = nullptr;
  // [num_seqs], or null if attention reads block_tables. See PagedAttentionParams::first_places.
  const int64_t* first_places = nullptr;
  const int32_t* logits_rows = nullptr;  // [num_logits], tokens whose logits are wanted
  // [num_seqs], in host memory: whether the sequence's first token of the step belongs to its
  // prompt. Null: false for all sequences.
  const uint8_t* begins_in_prompt = nullptr;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_API_STEP_INPUTS_H_
