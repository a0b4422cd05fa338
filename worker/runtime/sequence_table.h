// SequenceTable holds the state of each sequence, by handle. The scheduler can send all of this
// state again, so a worker that loses the table loses no token.
//
// Thread safety: one caller at a time (the executor thread).
// Invariants:    0 <= num_computed_tokens < token_ids.size() between steps;
//                the blocks in block_ids have room for at least num_computed_tokens tokens.
// Cost:          O(1) per lookup, and per block that is added or released.
// Memory:        at most 8 bytes per token and 8 per block of the current sequences. A released
//                handle frees its vectors: 4,096 handles with 131,072 tokens each would otherwise
//                keep 2 GiB that no memory plan counts.
#ifndef QUIRE_WORKER_RUNTIME_SEQUENCE_TABLE_H_
#define QUIRE_WORKER_RUNTIME_SEQUENCE_TABLE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/model/sampling_params.h"
#include "common/step/step_plan.h"
#include "common/step/step_plan_check.h"
#include "kernels/api/sampling.h"

namespace quire {

struct SequenceState {
  std::vector<TokenId> token_ids;  // prompt, then output; tokens from num_computed_tokens on
                                   // are not computed yet
  int32_t num_prompt_tokens = 0;
  int32_t num_computed_tokens = 0;
  std::vector<BlockId> block_ids;
  SamplingParams sampling;  // the seed is this sequence's, not the request's

  int32_t num_known_tokens() const { return static_cast<int32_t>(token_ids.size()); }
  std::span<const TokenId> prompt() const {
    return std::span(token_ids).first(static_cast<size_t>(num_prompt_tokens));
  }
  std::span<const TokenId> output() const {
    return std::span(token_ids).subspan(static_cast<size_t>(num_prompt_tokens));
  }
  // Returns what the sampling kernel needs for the next token. The result is valid until the
  // sequence changes.
  SamplingRow sampling_row() const {
    return {.params = &sampling, .prompt_token_ids = prompt(), .output_token_ids = output()};
  }
};

class SequenceTable {
 public:
  // num_blocks: blocks of the pool, the null block included.
  SequenceTable(int32_t max_sequences, int32_t num_blocks);

  // Returns null if the handle is free. REQUIRES: handle < max_sequences.
  SequenceState* Find(SequenceHandle handle);

  // Returns the part of the state that StepPlanChecker checks plans against; nullopt if the handle
  // is free.
  std::optional<KnownSequence> View(SequenceHandle handle) const;

  // Adds a sequence. If another sequence still has the handle, that sequence is dropped.
  void Introduce(const SequenceIntroduction& introduction);

  // Appends blocks to the block table of `sequence`, which must belong to this table.
  void Append(std::span<const BlockId> block_ids, SequenceState* sequence);

  // REQUIRES: the handle is in use.
  void Release(SequenceHandle handle);

  int32_t num_sequences() const { return num_sequences_; }
  // Blocks in the sequences' block tables, without the null block; a shared block counts once.
  // Blocks that lie before a sliding window count too, until their sequence is released.
  int32_t num_blocks() const { return num_blocks_; }

 private:
  struct Entry {
    bool in_use = false;
    SequenceState state;
  };

  void Reference(std::span<const BlockId> block_ids);
  void Dereference(std::span<const BlockId> block_ids);

  std::vector<Entry> entries_;     // [max_sequences]
  std::vector<int32_t> num_refs_;  // by block: how many block table entries name the block
  int32_t num_sequences_ = 0;
  int32_t num_blocks_ = 0;  // blocks with num_refs_ > 0, except the null block
};

}  // namespace quire

#endif  // QUIRE_WORKER_RUNTIME_SEQUENCE_TABLE_H_
