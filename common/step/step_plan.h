// StepPlan is the scheduler's order to a worker for one step. The worker executes the parts of the
// plan in the order of the fields: swap-outs, swap-ins, copies, introductions, slices, releases.
//
// Swaps can run while slices and later steps compute; each StepResult names the last step whose
// swaps are done. Until a block's swap-out is done, the block must not be written, and the host
// block must not be read or written. A plan's slices may use a block that the plan swaps in: the
// worker then computes the slices after that swap-in.
//
// A host block, a slot in host memory, is filled many times in an epoch. The generation of a host
// block is the step_id of the swap-out that filled it last. A swap-in names the generation that it
// wants, so that a stale reference fails instead of bringing back another sequence's K and V.
//
// A sequence is introduced once, with everything that determines its tokens. Later steps name the
// sequence by its handle and carry only new data. The worker derives the rest from its own state: a
// slice begins where the previous slice of the same sequence ended. The input of a decode slice is
// the token sampled last, unless the scheduler forces another token (beam search does).
//
// Thread safety: value types; a plan does not change after it is planned.
// Source:        PagedAttention, Kwon et al. 2023, section 4.6 (one message per step, physical
//                block ids for all workers); the shape follows the Ready struct of etcd's raft.
#ifndef QUIRE_COMMON_STEP_STEP_PLAN_H_
#define QUIRE_COMMON_STEP_STEP_PLAN_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/ids.h"
#include "common/model/sampling_params.h"

namespace quire {

// Means that a scheduler's incarnation is unknown. The incarnation is a number that grows with each
// start of a scheduler.
inline constexpr uint64_t kUnknownScheduler = ~uint64_t{0};

// Identifies one step of one epoch (one membership of a worker group) of one scheduler. Block ids
// and handles are valid only within one (scheduler_incarnation, group_epoch).
struct StepHeader {
  uint64_t scheduler_incarnation = 0;
  uint64_t group_epoch = 0;
  uint64_t step_id = 0;  // 1, 2, 3, ... without gaps inside an epoch

  friend bool operator==(const StepHeader&, const StepHeader&) = default;
};

// Copies the block, as the previous step left it, to the host block. The plan's step_id becomes the
// host block's generation.
struct BlockSwapOut {
  BlockId block = kNullBlockId;
  HostBlockId host_block = 0;

  friend bool operator==(const BlockSwapOut&, const BlockSwapOut&) = default;
};

// Copies a host block into `block`, which need not be the block that was swapped out. If the host
// block has another generation, the worker leaves `block` unchanged and names it in
// failed_swap_ins.
struct BlockSwapIn {
  BlockId block = kNullBlockId;
  HostBlockId host_block = 0;
  uint64_t generation = 0;  // step_id of the wanted swap-out

  friend bool operator==(const BlockSwapIn&, const BlockSwapIn&) = default;
};

// Copies a whole block, all layers, before any slice writes or reads dst.
struct BlockCopy {
  BlockId src = kNullBlockId;
  BlockId dst = kNullBlockId;

  friend bool operator==(const BlockCopy&, const BlockCopy&) = default;
};

// Makes a sequence known under a handle. The worker forgets an older sequence with the same handle.
// Introductions are executed before the slices, so a slice of the same step may name the handle.
// After a preemption by recompute the same sequence is introduced again, with all its tokens and
// num_computed_tokens = 0.
struct SequenceIntroduction {
  SequenceHandle handle = 0;
  std::vector<TokenId> token_ids;   // prompt, then the output so far
  int32_t num_prompt_tokens = 0;    // length of the prompt; some penalties ignore the prompt
  int32_t num_computed_tokens = 0;  // tokens already in the KV cache; < token_ids.size()
  // The blocks of the computed tokens; slices append more. The null block stands for a block whose
  // tokens all lie before the sliding window of the next token: no query reads such a block.
  std::vector<BlockId> block_ids;
  int32_t sequence_index = 0;  // index in the request; sampling uses seed + sequence_index
  SamplingParams sampling;

  friend bool operator==(const SequenceIntroduction&, const SequenceIntroduction&) = default;
};

// Computes the next num_tokens tokens of a sequence. If the slice reaches the sequence's last known
// token, the worker samples one more token, which becomes known. Sampled tokens are returned in the
// order of the slices.
struct SequenceSlice {
  SequenceHandle handle = 0;
  int32_t num_tokens = 0;              // > 0
  std::vector<BlockId> new_block_ids;  // appended to the block table before computing
  // If set, replaces the token that the worker sampled last for this sequence.
  std::optional<TokenId> forced_token_id = std::nullopt;
  // A hint, only with StepLimits::wants_next_blocks: the block that the sequence will probably
  // append in the next step. The hint reserves nothing, and a wrong hint costs only time.
  std::optional<BlockId> next_block_id = std::nullopt;

  friend bool operator==(const SequenceSlice&, const SequenceSlice&) = default;
};

// A hint, only with StepLimits::wants_next_blocks: the next new sequence will probably get this
// handle, and its blocks will probably begin with block_ids. The hint reserves nothing, and a wrong
// hint costs only time.
struct SpareWindow {
  SequenceHandle handle = 0;
  std::vector<BlockId> block_ids;  // at most MaxSpareBlocks(limits); empty: no hint

  friend bool operator==(const SpareWindow&, const SpareWindow&) = default;
};

struct StepPlan {
  StepHeader header;
  std::vector<BlockSwapOut> swap_outs;
  std::vector<BlockSwapIn> swap_ins;
  std::vector<BlockCopy> copies;
  std::vector<SequenceIntroduction> introductions;
  std::vector<SequenceSlice> slices;
  std::vector<SequenceHandle> releases;  // sequences that the worker forgets after the slices
  SpareWindow spare;
  uint64_t digest = 0;  // DigestOf(this), set when the plan is complete

  bool empty() const {
    return swap_outs.empty() && swap_ins.empty() && copies.empty() && introductions.empty() &&
           slices.empty() && releases.empty();
  }

  friend bool operator==(const StepPlan&, const StepPlan&) = default;
};

// Returns a 64-bit digest of all fields of the plan except `spare` and `digest`. A worker that does
// not know the hint `spare` drops it, and still computes the same digest. Two plans with the same
// step_id and different digests are a protocol violation.
uint64_t DigestOf(const StepPlan& plan);

}  // namespace quire

#endif  // QUIRE_COMMON_STEP_STEP_PLAN_H_
