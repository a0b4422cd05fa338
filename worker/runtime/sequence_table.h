// SequenceTable holds what the worker knows of each sequence, by handle. All of it can be derived
// again from what the scheduler has: a worker that lost its table lost no token.
//
// Thread safety: one caller at a time (the executor thread).
// Invariants:    0 <= num_computed_tokens < token_ids.size() between steps;
//                block_ids hold at least num_computed_tokens tokens.
// Cost:          O(1) a lookup; a block is counted when it comes and when it goes.
// Memory:        at most 8 bytes a token and 8 a block of the sequences that are there. A released
//                handle keeps nothing: 4,096 of them with 131,072 tokens each would keep 2 GiB that
//                no memory plan counts.
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
  std::vector<TokenId> token_ids;  // prompt, then output; the last one may not be computed yet
  int32_t num_prompt_tokens = 0;
  int32_t num_computed_tokens = 0;
  std::vector<BlockId> block_ids;
  SamplingParams sampling;  // seed: of this sequence

  int32_t num_known_tokens() const { return static_cast<int32_t>(token_ids.size()); }
  std::span<const TokenId> prompt() const {
    return std::span(token_ids).first(static_cast<size_t>(num_prompt_tokens));
  }
  std::span<const TokenId> output() const {
    return std::span(token_ids).subspan(static_cast<size_t>(num_prompt_tokens));
  }
  // How its next token is sampled. Valid while the sequence does not change.
  SamplingRow sampling_row() const {
    return {.params = &sampling, .prompt_token_ids = prompt(), .output_token_ids = output()};
  }
};

class SequenceTable {
 public:
  // num_blocks: of the pool, the null block included.
  SequenceTable(int32_t max_sequences, int32_t num_blocks);

  // Null when the handle is free. REQUIRES: handle < max_sequences.
  SequenceState* Find(SequenceHandle handle);

  // For StepPlanChecker.
  std::optional<KnownSequence> View(SequenceHandle handle) const;

  // A sequence that has the handle already is forgotten.
  void Introduce(const SequenceIntroduction& introduction);

  // More blocks of one of its sequences.
  void Append(std::span<const BlockId> block_ids, SequenceState* sequence);

  // REQUIRES: the handle is in use.
  void Release(SequenceHandle handle);

  int32_t num_sequences() const { return num_sequences_; }
  // Blocks that any of them has in its table, without the null block. Those that a sliding window
  // has passed are among them until their sequence is released.
  int32_t num_blocks() const { return num_blocks_; }

 private:
  struct Entry {
    bool in_use = false;
    SequenceState state;
  };

  void Reference(std::span<const BlockId> block_ids);
  void Dereference(std::span<const BlockId> block_ids);

  std::vector<Entry> entries_;     // [max_sequences]
  std::vector<int32_t> num_refs_;  // by block: places in tables that name it
  int32_t num_sequences_ = 0;
  int32_t num_blocks_ = 0;  // that have references, but for the null block
};

}  // namespace quire

#endif  // QUIRE_WORKER_RUNTIME_SEQUENCE_TABLE_H_
