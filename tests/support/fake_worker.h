// FakeWorker executes step plans without a model, yet detects wrong blocks. Its KV cache stores a
// word for each (block, offset), made from the token, its position and all earlier words. Every
// step reads all earlier words back through the sequence's block table. The sampled token is a hash
// of these words, of the seed and of the sequence index. So a stale block, an aliased block, a
// wrong length or a lost copy changes all later tokens, as in a real model. ExpectedToken computes
// the right token from the plain history, and ExpectedCandidates the right candidates for beam
// search.
//
// FakeWorker refuses plans that StepPlanChecker refuses, and steps out of order. It also refuses a
// write to a block that a pending swap still uses, which no check of a single plan finds. If a
// swap-in names a generation that its host block does not have, the swap-in fails and fills its
// block with wrong words. If the last step is repeated, FakeWorker returns the same answer and does
// not execute the step again.
//
// Thread safety: not thread-safe.
// Cost:          O(context length) per slice; with a sliding window, O(window) per token.
#ifndef QUIRE_TESTS_SUPPORT_FAKE_WORKER_H_
#define QUIRE_TESTS_SUPPORT_FAKE_WORKER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "common/base/ids.h"
#include "common/model/sampling_params.h"
#include "common/step/step_limits.h"
#include "common/step/step_plan.h"
#include "common/step/step_plan_check.h"
#include "common/step/step_result.h"

namespace quire {

// Returns the token that follows token_ids (prompt and output) in the sequence_index-th sequence of
// a request with this seed.
TokenId ExpectedToken(std::span<const TokenId> token_ids,
                      uint64_t seed,
                      int32_t sequence_index,
                      int32_t vocab_size,
                      int32_t sliding_window = 0);

// Returns the likeliest tokens after token_ids, best first. They do not depend on the seed or the
// sequence index. The tokens are distinct, and no two are equally likely. There are fewer than
// num_candidates if the vocabulary is smaller.
std::vector<TokenLogprob> ExpectedCandidates(std::span<const TokenId> token_ids,
                                             int32_t num_candidates,
                                             int32_t vocab_size,
                                             int32_t sliding_window = 0);

// Returns the log-probabilities of the prompt's tokens, from position 1 on, with num_top likeliest
// tokens at each position (at most vocab_size). REQUIRES: the prompt has two tokens or more.
PromptLogprobs ExpectedPromptLogprobs(std::span<const TokenId> prompt,
                                      int32_t num_top,
                                      int32_t vocab_size,
                                      int32_t sliding_window = 0);

class FakeWorker {
 public:
  // Makes a worker for one epoch. The worker does each swap swap_delay_steps steps after the step
  // that ordered it, or earlier if a step uses the swap's block or has no slices. A different
  // `salt` for each rank makes the ranks' cells differ; all ranks still sample the same tokens.
  explicit FakeWorker(const StepLimits& limits, int32_t swap_delay_steps = 0, uint64_t salt = 0);

  // Errors: those of StepPlanChecker, kOutOfRange for a step that is not the next,
  // kFailedPrecondition for a write to a block that is being swapped, and kUnavailable for a poison
  // token. An error changes only the checker's scratch memory, and crashed_by.
  absl::StatusOr<StepResult> Execute(const StepPlan& plan);

  bool IsKnown(SequenceHandle handle) const;
  int32_t num_known_sequences() const;

  // Returns the seed of the sequence that computed the block's contents; 0 if no sequence has.
  uint64_t WriterOf(BlockId block_id) const { return writers_[static_cast<size_t>(block_id)]; }

  // Makes a swap-in from this host block fail in the next plan.
  void FailSwapIn(HostBlockId host_block) { failing_.insert(host_block); }

  // Makes the worker crash whenever it computes this token of a sequence with this seed. With
  // is_harmless_alone, the worker crashes only if the slice has other tokens too. In a crash
  // Execute returns kUnavailable CRASHED.
  struct PoisonToken {
    int32_t position = 0;
    bool is_harmless_alone = false;
  };
  void Poison(uint64_t seed, PoisonToken token) { poison_[seed] = token; }
  // Handles of the sequences that made the worker crash.
  const std::vector<SequenceHandle>& crashed_by() const { return crashed_by_; }
  int32_t NumComputedTokens(SequenceHandle handle) const {
    // REQUIRES: the handle is known.
    return sequences_[handle]->num_computed_tokens;
  }

  // Corrupts the block's contents: flips the bits of `mask` in each cell.
  void SpoilBlock(BlockId block_id, uint64_t mask);

  // Simulates a non-finite row of this sequence: corrupts the cells that its last slice wrote.
  // Cells in blocks that another sequence reads stay as they are, else the other sequence's row
  // would not be finite either. REQUIRES: the sequence is known.
  void SpoilLastSlice(SequenceHandle handle);

 private:
  struct KnownState {
    std::vector<TokenId> token_ids;
    int32_t num_computed_tokens = 0;
    int32_t num_computed_before = 0;  // num_computed_tokens before the last slice
    std::vector<BlockId> block_ids;
    int32_t sequence_index = 0;
    uint64_t seed = 0;
    int32_t num_logprobs = -1;
    int32_t num_prompt_tokens = 0;
    int32_t num_prompt_logprobs = -1;
  };

  struct SwapUnderWay {
    BlockId block = kNullBlockId;
    HostBlockId host_block = 0;
    bool is_out = false;
    bool has_failed = false;
    uint64_t step_id = 0;
    bool is_done = false;
  };

  absl::Status CheckSwaps(const StepPlan& plan) const;
  bool IsPoison(const StepPlan& plan, const SequenceSlice& slice) const;
  bool IsLeaving(BlockId block_id) const;
  bool IsArrivingFrom(HostBlockId host_block) const;
  // Queues the plan's swaps. Returns the blocks of swap-ins that fail.
  std::vector<BlockId> TakeSwaps(const StepPlan& plan);
  void Do(size_t index);  // index into swaps_
  // Does all swaps that were ordered up to this step.
  void DoSwapsUpTo(uint64_t step_id);
  // Does all swap-ins of these blocks.
  void DoSwapsOf(const std::vector<BlockId>& block_ids);
  void CopyBlock(const BlockCopy& copy);
  std::optional<SampledToken> ExecuteSlice(const SequenceSlice& slice, StepResult& result);
  // Returns a hash of the cells that the token at this position attends to, itself excluded.
  uint64_t Attended(const KnownState& sequence, int32_t position);
  uint64_t& Cell(const KnownState& sequence, int32_t position);

  StepLimits limits_;
  StepPlanChecker checker_;
  const int32_t swap_delay_steps_;
  const uint64_t salt_;
  uint64_t last_step_id_ = 0;
  StepResult last_result_;
  std::deque<SwapUnderWay> swaps_;                    // oldest first
  std::vector<std::optional<KnownState>> sequences_;  // indexed by SequenceHandle
  std::vector<uint64_t> cells_;                       // [num_blocks][block_size_tokens]
  std::vector<uint64_t> host_cells_;                  // [num_host_blocks][block_size_tokens]
  std::vector<uint64_t> writers_;           // by block: seed of the sequence that wrote it
  std::vector<uint64_t> host_writers_;      // by host block: seed of the sequence that wrote it
  std::vector<uint64_t> generations_;       // by host block: its generation; 0: empty
  std::set<HostBlockId> failing_;           // host blocks whose swap-ins fail in the next plan
  std::map<uint64_t, PoisonToken> poison_;  // keyed by the sequence's seed
  std::vector<SequenceHandle> crashed_by_;
};

}  // namespace quire

#endif  // QUIRE_TESTS_SUPPORT_FAKE_WORKER_H_
