// StepPlan is what the scheduler orders a worker to do in one step, as one value. The worker
// executes it in the order of the fields: swap-outs, swap-ins, copies, introductions, slices,
// releases.
//
// Swaps go on beside the slices, and beside later steps: the result names the last step whose swaps
// are done. Until then a block that is swapped out is not written, its host block not read or
// written. A block that is swapped in may be used at once: what uses it waits.
//
// A host block is filled many times in an epoch. Its generation is the step_id of the swap-out that
// filled it last, and a swap-in names the one that it wants: a reference that is out of date brings
// back nothing instead of another sequence's K and V.
//
// A sequence is introduced once, with everything that decides its tokens. Later steps name it by
// its handle and carry only what is new. What follows from the worker's own state is not sent: the
// position of a slice is where the previous one ended, and the input of a decode slice is the
// token that the worker sampled last, unless the scheduler chose another one (beam search does).
//
// Thread safety: value types; a plan is immutable once it is planned.
// Source:        PagedAttention, Kwon et al. 2023, section 4.6 (one message per step, physical
//                block ids for all workers); the shape follows raft's Ready.
#ifndef QUIRE_COMMON_STEP_STEP_PLAN_H_
#define QUIRE_COMMON_STEP_STEP_PLAN_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/ids.h"
#include "common/model/sampling_params.h"

namespace quire {

// The incarnation of a scheduler of which nothing is known.
inline constexpr uint64_t kUnknownScheduler = ~uint64_t{0};

// Names one step of one membership of one scheduler. Block ids and handles mean something only
// inside one (scheduler_incarnation, group_epoch).
struct StepHeader {
  uint64_t scheduler_incarnation = 0;
  uint64_t group_epoch = 0;
  uint64_t step_id = 0;  // 1, 2, 3, ... without gaps inside an epoch

  friend bool operator==(const StepHeader&, const StepHeader&) = default;
};

// The block's contents after the last step go to the host block, whose generation is then the
// step_id of the plan.
struct BlockSwapOut {
  BlockId block = kNullBlockId;
  HostBlockId host_block = 0;

  friend bool operator==(const BlockSwapOut&, const BlockSwapOut&) = default;
};

// They come back, into any block. A worker whose host block is of another generation leaves the
// block as it is and says so in the result.
struct BlockSwapIn {
  BlockId block = kNullBlockId;
  HostBlockId host_block = 0;
  uint64_t generation = 0;  // the step that swapped out what is wanted

  friend bool operator==(const BlockSwapIn&, const BlockSwapIn&) = default;
};

// Copy a whole block, all layers. Executed before any slice writes or reads dst.
struct BlockCopy {
  BlockId src = kNullBlockId;
  BlockId dst = kNullBlockId;

  friend bool operator==(const BlockCopy&, const BlockCopy&) = default;
};

// Makes a sequence known under a handle; one that has the handle already is forgotten. Executed
// before the slices, which may name the handle in the same step. After a preemption by recompute
// the same sequence is introduced again, with all its tokens and num_computed_tokens = 0.
struct SequenceIntroduction {
  SequenceHandle handle = 0;
  std::vector<TokenId> token_ids;   // prompt, then committed output
  int32_t num_prompt_tokens = 0;    // the first of token_ids; penalties tell them apart
  int32_t num_computed_tokens = 0;  // already in the KV cache; < token_ids.size()
  // The blocks of the computed tokens; slices append. The null block where all tokens of a block
  // lie before the window of what is still to be computed: nobody reads them.
  std::vector<BlockId> block_ids;
  int32_t sequence_index = 0;  // in its request: it draws as a lone sequence of seed + this
  SamplingParams sampling;

  friend bool operator==(const SequenceIntroduction&, const SequenceIntroduction&) = default;
};

// Compute the next num_tokens tokens of a sequence. When that reaches the last known token, its
// logits are sampled and the sampled token becomes known. The order of slices is the order of
// results.
struct SequenceSlice {
  SequenceHandle handle = 0;
  int32_t num_tokens = 0;              // > 0
  std::vector<BlockId> new_block_ids;  // appended to the block table before computing
  // Takes the place of the last known token, which is the one that the worker sampled.
  std::optional<TokenId> forced_token_id = std::nullopt;
  // A hint, where StepLimits::wants_next_blocks: the block that the sequence will probably append
  // in the next step. It reserves nothing; whatever is appended then is right, and a wrong hint
  // costs only time.
  std::optional<BlockId> next_block_id = std::nullopt;

  friend bool operator==(const SequenceSlice&, const SequenceSlice&) = default;
};

struct StepPlan {
  StepHeader header;
  std::vector<BlockSwapOut> swap_outs;
  std::vector<BlockSwapIn> swap_ins;
  std::vector<BlockCopy> copies;
  std::vector<SequenceIntroduction> introductions;
  std::vector<SequenceSlice> slices;
  std::vector<SequenceHandle> releases;  // forget; after the slices
  uint64_t digest = 0;                   // DigestOf(this), made once, when the plan is whole

  bool empty() const {
    return swap_outs.empty() && swap_ins.empty() && copies.empty() && introductions.empty() &&
           slices.empty() && releases.empty();
  }

  friend bool operator==(const StepPlan&, const StepPlan&) = default;
};

// A 64-bit digest of everything else in the plan, header included. Two plans under one step_id with
// different digests are a protocol violation.
uint64_t DigestOf(const StepPlan& plan);

}  // namespace quire

#endif  // QUIRE_COMMON_STEP_STEP_PLAN_H_
