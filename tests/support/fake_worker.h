// FakeWorker executes step plans without a model, and can tell a wrong block from a right one. Its
// KV cache stores a word for each (block, offset), made from the token, its position and everything
// before it; every step reads all earlier words back through the block table that it was given. The
// sampled token is a hash of all that, of the seed and of the place in the output. So a stale
// block, an aliased one, a wrong length or a lost copy changes the tokens from there on, as it
// would in a real model, and ExpectedToken says from the plain history what they must be.
//
// The likeliest tokens of beam search hang on the same: ExpectedCandidates says what they must be.
//
// It refuses what a worker must refuse: plans that StepPlanChecker refuses, and steps out of order.
// It also refuses what a worker cannot see in one plan: to write where a swap under way still reads
// or writes. A swap-in from a host block of another generation fails, and what it was to bring is
// wrong. The last step, asked for again, gets the same answer and is not executed again.
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

// The token that follows token_ids, prompt and output, in the sequence_index-th sequence of a
// request with this seed.
TokenId ExpectedToken(std::span<const TokenId> token_ids,
                      uint64_t seed,
                      int32_t sequence_index,
                      int32_t vocab_size,
                      int32_t sliding_window = 0);

// The likeliest tokens that follow token_ids, best first, in any sequence. Distinct, no two equally
// likely; fewer when the vocabulary has no more.
std::vector<TokenLogprob> ExpectedCandidates(std::span<const TokenId> token_ids,
                                             int32_t num_candidates,
                                             int32_t vocab_size,
                                             int32_t sliding_window = 0);

class FakeWorker {
 public:
  // One worker for one epoch. Its swaps are done so many steps after the step that ordered them, or
  // when what they bring is used, or in a step without slices.
  // salt: of the rank, in what its cells hold; the tokens of all ranks are the same.
  explicit FakeWorker(const StepLimits& limits, int32_t swap_delay_steps = 0, uint64_t salt = 0);

  // Errors: those of StepPlanChecker, kOutOfRange for a step that is not the next,
  // kFailedPrecondition for a write to a block that is being swapped, and kUnavailable for a poison
  // token. Nothing is changed then, but for the checker.
  absl::StatusOr<StepResult> Execute(const StepPlan& plan);

  bool IsKnown(SequenceHandle handle) const;
  int32_t num_known_sequences() const;

  // The seed of the sequence that computed what the block holds; 0: nobody has.
  uint64_t WriterOf(BlockId block_id) const { return writers_[static_cast<size_t>(block_id)]; }

  // The swap-in from this host block fails in the next plan.
  void FailSwapIn(HostBlockId host_block) { failing_.insert(host_block); }

  // The worker crashes whenever it computes this token of a sequence with this seed, or only when
  // it computes others of the sequence in the same step. Execute says kUnavailable CRASHED then.
  struct PoisonToken {
    int32_t position = 0;
    bool is_harmless_alone = false;
  };
  void Poison(uint64_t seed, PoisonToken token) { poison_[seed] = token; }
  // The sequences that made it crash.
  const std::vector<SequenceHandle>& crashed_by() const { return crashed_by_; }
  int32_t NumComputedTokens(SequenceHandle handle) const {
    return sequences_[handle]->num_computed_tokens;  // REQUIRES: it is known
  }

  // What the block holds is wrong from now on.
  void SpoilBlock(BlockId block_id);

  // The row of this sequence was not finite: nor is what its last slice wrote, where no other
  // sequence reads it (its row would not have been finite either). REQUIRES: it is known.
  void SpoilLastSlice(SequenceHandle handle);

 private:
  struct KnownState {
    std::vector<TokenId> token_ids;
    int32_t num_computed_tokens = 0;
    int32_t num_computed_before = 0;  // the last slice
    std::vector<BlockId> block_ids;
    int32_t sequence_index = 0;
    uint64_t seed = 0;
    int32_t num_logprobs = -1;
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
  // Returns the blocks that will not come back.
  std::vector<BlockId> TakeSwaps(const StepPlan& plan);
  void Do(size_t index);  // of swaps_
  // All that were ordered up to a step, or that bring one of these blocks.
  void DoSwapsUpTo(uint64_t step_id);
  void DoSwapsOf(const std::vector<BlockId>& block_ids);
  void CopyBlock(const BlockCopy& copy);
  std::optional<SampledToken> ExecuteSlice(const SequenceSlice& slice, uint64_t& row_hash);
  // Of the tokens that the one at this position sees before itself.
  uint64_t Attended(const KnownState& sequence, int32_t position);
  uint64_t& Cell(const KnownState& sequence, int32_t position);

  StepLimits limits_;
  StepPlanChecker checker_;
  const int32_t swap_delay_steps_;
  const uint64_t salt_;
  uint64_t last_step_id_ = 0;
  StepResult last_result_;
  std::deque<SwapUnderWay> swaps_;                    // oldest first
  std::vector<std::optional<KnownState>> sequences_;  // by handle
  std::vector<uint64_t> cells_;                       // [num_blocks][block_size_tokens]
  std::vector<uint64_t> host_cells_;                  // [num_host_blocks][block_size_tokens]
  std::vector<uint64_t> writers_;                     // by block: seeds
  std::vector<uint64_t> host_writers_;                // by host block
  std::vector<uint64_t> generations_;                 // by host block; 0: holds nothing
  std::set<HostBlockId> failing_;                     // in the next plan
  std::map<uint64_t, PoisonToken> poison_;            // by seed
  std::vector<SequenceHandle> crashed_by_;
};

}  // namespace quire

#endif  // QUIRE_TESTS_SUPPORT_FAKE_WORKER_H_
