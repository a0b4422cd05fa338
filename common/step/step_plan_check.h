// StepPlanChecker decides whether a worker may execute a plan. It runs before the worker touches
// any memory, so that a faulty scheduler gets an error status and never writes into another
// sequence's blocks. The scheduler's tests check every plan with a StepPlanChecker too.
//
// Checks, with the reason of the refusal:
//   BLOCK_RANGE     every block id is in [1, num_blocks), every host block in [0, num_host_blocks);
//                   the null block stands only for blocks before the sliding window; next and
//                   spare blocks are named only if wants_next_blocks is set
//   BLOCK_CONFLICT  no block is written by two slices or appears twice in one table; a copy's
//                   target is no copy's source and no other copy's target; no block and no host
//                   block is swapped twice; a block that is swapped out is not written in the same
//                   step
//   HANDLE          a handle is below max_sequences; slices and releases name only known handles; a
//                   handle has at most one introduction, one slice and one release in a step
//   LENGTH          slices have tokens, counts are not negative, tables have room for all tokens,
//                   no sequence exceeds max_model_len, and a spare window has at most
//                   MaxSpareBlocks blocks
//   POSITION_RANGE  a slice ends at or before the last known token
//   TOKEN_ID_RANGE  every token id is in [0, vocab_size)
//   STEP_LIMIT      (kResourceExhausted) a step has at most the agreed numbers of sequences and
//                   tokens
//   and the reasons of Validate(SamplingParams).
// Generations of host blocks are not checked: a swap-in that names a wrong generation fails alone
// and is named in the result.
//
// Thread safety: one caller at a time, since the checker reuses scratch memory.
// Errors:        kInvalidArgument except where noted, message "field: rule (got X, limit Y)".
// Cost:          O(slices + blocks written), plus O(tokens + blocks) for each introduction, plus
//                O(length of the block table) for each slice with new blocks. No allocation.
#ifndef QUIRE_COMMON_STEP_STEP_PLAN_CHECK_H_
#define QUIRE_COMMON_STEP_STEP_PLAN_CHECK_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/model/model_config.h"
#include "common/step/step_limits.h"
#include "common/step/step_plan.h"

namespace quire {

// Upper bounds on the limits that a group may agree on. Within these bounds no arithmetic
// overflows. CheckMessageFits bounds combinations of limits.

// This limit bounds memory: scheduler and worker keep some words for each block.
inline constexpr int32_t kMaxBlocksLimit = 1 << 24;
inline constexpr int32_t kMaxHostBlocksLimit = 1 << 20;  // so that one message can name all of them
inline constexpr int32_t kMaxBlockSizeTokens = 256;
inline constexpr int32_t kMaxSequencesLimit = 4096;
inline constexpr int32_t kMaxTokensPerStepLimit = 1 << 17;
inline constexpr int32_t kMaxModelLenLimit = kMaxPositionsLimit;

// Checks that every limit is within its bounds, and that block_size_tokens and blocks_per_page are
// powers of two. Errors: kInvalidArgument, reason STEP_LIMITS.
absl::Status Validate(const StepLimits& limits);

// Checks that every plan within the limits fits one message. Errors: as Validate.
// REQUIRES: Validate(limits) is OK.
absl::Status CheckMessageFits(const StepLimits& limits);

// A sequence as the worker knows it before the plan.
struct KnownSequence {
  int32_t num_known_tokens = 0;     // prompt, forced and sampled tokens
  int32_t num_computed_tokens = 0;  // < num_known_tokens
  std::span<const BlockId> block_ids;
};

// Returns nullopt if no sequence has the handle. Called only with handles below max_sequences.
using FindSequence = absl::FunctionRef<std::optional<KnownSequence>(SequenceHandle)>;

class StepPlanChecker {
 public:
  // REQUIRES: Validate(limits) is OK.
  explicit StepPlanChecker(const StepLimits& limits);

  absl::Status Check(const StepPlan& plan, FindSequence find);

  const StepLimits& limits() const { return limits_; }

 private:
  // A set of small integers that can be emptied in O(1). An integer is a member if its stamp is
  // the set's current stamp.
  class SeenSet {
   public:
    explicit SeenSet(int32_t size) : stamps_(static_cast<size_t>(size), 0) {}
    // Empties the set.
    void Begin();
    // Returns true if index is new.
    bool Insert(int64_t index);
    bool Contains(int64_t index) const { return stamps_[static_cast<size_t>(index)] == stamp_; }

   private:
    std::vector<uint32_t> stamps_;
    uint32_t stamp_ = 0;
  };

  absl::Status CheckCounts(const StepPlan& plan) const;
  absl::Status CheckSwapOuts(const std::vector<BlockSwapOut>& swaps);
  absl::Status CheckSwapIns(const std::vector<BlockSwapIn>& swaps);
  absl::Status CheckCopies(const std::vector<BlockCopy>& copies);
  absl::Status CheckIntroduction(const SequenceIntroduction& introduction);
  absl::Status CheckTokens(const SequenceIntroduction& introduction) const;
  absl::Status CheckToken(std::string_view field, TokenId token_id) const;
  absl::Status CheckSlice(const SequenceSlice& slice, const KnownSequence& sequence);
  absl::Status CheckTable(std::span<const BlockId> old_ids,
                          std::span<const BlockId> new_ids,
                          int32_t num_computed_tokens);
  absl::Status CheckWrites(const SequenceSlice& slice, const KnownSequence& sequence);
  absl::Status CheckBlock(std::string_view field, BlockId block) const;
  absl::Status CheckHostBlock(std::string_view field, HostBlockId host_block) const;
  absl::Status CheckHint(std::string_view field, BlockId block) const;
  absl::Status CheckSpare(const SpareWindow& spare) const;
  absl::Status CheckRelease(SequenceHandle handle, FindSequence find);
  absl::StatusOr<KnownSequence> Look(const StepPlan& plan,
                                     SequenceHandle handle,
                                     FindSequence find) const;

  StepLimits limits_;
  SeenSet host_swapped_;                    // host block ids
  SeenSet swapped_out_;                     // block ids
  SeenSet swapped_in_;                      // block ids
  SeenSet copy_sources_;                    // block ids
  SeenSet copy_targets_;                    // block ids
  SeenSet table_;                           // block ids in the table of one sequence
  SeenSet written_;                         // block ids
  SeenSet introduced_;                      // handles
  SeenSet sliced_;                          // handles
  SeenSet released_;                        // handles
  std::vector<size_t> introduction_index_;  // by handle; valid if introduced_ has the handle
};

}  // namespace quire

#endif  // QUIRE_COMMON_STEP_STEP_PLAN_CHECK_H_
