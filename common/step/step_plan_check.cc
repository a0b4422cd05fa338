#include "common/step/step_plan_check.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/math.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/model/sampling_params_check.h"
#include "common/model/sliding_window.h"
#include "common/step/step_bytes.h"

namespace quire {
namespace {

struct Fault {
  std::string_view reason;
  std::string_view field;
  std::string_view rule;
  int64_t got = 0;
  int64_t limit = 0;
};

std::string Describe(const Fault& fault) {
  return absl::StrCat(ToAbsl(fault.field),
                      ": ",
                      ToAbsl(fault.rule),
                      " (got ",
                      fault.got,
                      ", limit ",
                      fault.limit,
                      ")");
}

absl::Status Invalid(const Fault& fault) { return InvalidArgument(fault.reason, Describe(fault)); }

absl::Status CheckLimit(std::string_view field, int32_t value, int32_t min, int32_t max) {
  if (value >= min && value <= max) {
    return absl::OkStatus();
  }
  std::string_view rule = value < min ? "too small" : "too large";
  return Invalid({.reason = "STEP_LIMITS",
                  .field = field,
                  .rule = rule,
                  .got = value,
                  .limit = value < min ? min : max});
}

absl::Status CheckStepLimit(std::string_view field, int64_t got, int64_t limit) {
  if (got <= limit) {
    return absl::OkStatus();
  }
  return Error(absl::StatusCode::kResourceExhausted,
               "STEP_LIMIT",
               Describe({.reason = "STEP_LIMIT",
                         .field = field,
                         .rule = "exceeds the limit agreed for this epoch",
                         .got = got,
                         .limit = limit}));
}

absl::Status CheckHandle(std::string_view field, SequenceHandle handle, int32_t max_sequences) {
  if (handle < static_cast<uint32_t>(max_sequences)) {
    return absl::OkStatus();
  }
  return Invalid({.reason = "HANDLE",
                  .field = field,
                  .rule = "out of range",
                  .got = handle,
                  .limit = max_sequences - 1});
}

absl::Status HandleFault(std::string_view field, std::string_view rule, SequenceHandle handle) {
  return InvalidArgument("HANDLE",
                         absl::StrCat(ToAbsl(field), ": ", ToAbsl(rule), " (got ", handle, ")"));
}

absl::Status Conflict(std::string_view field, std::string_view rule, BlockId block) {
  return InvalidArgument("BLOCK_CONFLICT",
                         absl::StrCat(ToAbsl(field), ": ", ToAbsl(rule), " (got ", block, ")"));
}

}  // namespace

absl::Status Validate(const StepLimits& limits) {
  constexpr int32_t kMaxInt = std::numeric_limits<int32_t>::max();
  QUIRE_RETURN_IF_ERROR(CheckLimit("num_blocks", limits.num_blocks, 2, kMaxBlocksLimit));
  QUIRE_RETURN_IF_ERROR(
      CheckLimit("num_host_blocks", limits.num_host_blocks, 0, kMaxHostBlocksLimit));
  QUIRE_RETURN_IF_ERROR(
      CheckLimit("block_size_tokens", limits.block_size_tokens, 1, kMaxBlockSizeTokens));
  if ((limits.block_size_tokens & (limits.block_size_tokens - 1)) != 0) {
    return InvalidArgument(
        "STEP_LIMITS",
        absl::StrCat(
            "block_size_tokens: must be a power of two (got ", limits.block_size_tokens, ")"));
  }
  QUIRE_RETURN_IF_ERROR(CheckLimit("max_sequences", limits.max_sequences, 1, kMaxSequencesLimit));
  QUIRE_RETURN_IF_ERROR(
      CheckLimit("max_tokens_per_step", limits.max_tokens_per_step, 1, kMaxTokensPerStepLimit));
  QUIRE_RETURN_IF_ERROR(
      CheckLimit("max_model_len_tokens", limits.max_model_len, 1, kMaxModelLenLimit));
  QUIRE_RETURN_IF_ERROR(
      CheckLimit("sliding_window_tokens", limits.sliding_window, 0, kMaxModelLenLimit));
  QUIRE_RETURN_IF_ERROR(
      CheckLimit("blocks_per_page", limits.blocks_per_page, 1, kMaxBlocksPerPage));
  if ((limits.blocks_per_page & (limits.blocks_per_page - 1)) != 0) {
    return InvalidArgument(
        "STEP_LIMITS",
        absl::StrCat("blocks_per_page: must be a power of two (got ", limits.blocks_per_page, ")"));
  }
  return CheckLimit("vocab_size", limits.vocab_size, 1, kMaxInt);
}

absl::Status CheckMessageFits(const StepLimits& limits) {
  const int64_t num_bytes = MaxStepBytes(limits);
  if (num_bytes <= kMaxStepBytes) {
    return absl::OkStatus();
  }
  return Invalid({.reason = "STEP_LIMITS",
                  .field = "max_model_len_tokens, num_host_blocks",
                  .rule = "the longest step exceeds the maximum size of a message in bytes",
                  .got = num_bytes,
                  .limit = kMaxStepBytes});
}

void StepPlanChecker::SeenSet::Begin() {
  if (++stamp_ == 0) {  // wrapped around: old stamps would look current
    std::fill(stamps_.begin(), stamps_.end(), 0);
    stamp_ = 1;
  }
}

bool StepPlanChecker::SeenSet::Insert(int64_t index) {
  uint32_t& stamp = stamps_[static_cast<size_t>(index)];
  bool is_first = stamp != stamp_;
  stamp = stamp_;
  return is_first;
}

StepPlanChecker::StepPlanChecker(const StepLimits& limits)
    : limits_(limits),
      host_swapped_(limits.num_host_blocks),
      swapped_out_(limits.num_blocks),
      swapped_in_(limits.num_blocks),
      copy_sources_(limits.num_blocks),
      copy_targets_(limits.num_blocks),
      table_(limits.num_blocks),
      written_(limits.num_blocks),
      introduced_(limits.max_sequences),
      sliced_(limits.max_sequences),
      released_(limits.max_sequences),
      introduction_index_(static_cast<size_t>(limits.max_sequences), 0) {
  QUIRE_CHECK(Validate(limits).ok());
}

absl::Status StepPlanChecker::Check(const StepPlan& plan, FindSequence find) {
  for (SeenSet* set : {&host_swapped_,
                       &swapped_out_,
                       &swapped_in_,
                       &copy_sources_,
                       &copy_targets_,
                       &written_,
                       &introduced_,
                       &sliced_,
                       &released_}) {
    set->Begin();
  }
  QUIRE_RETURN_IF_ERROR(CheckCounts(plan));
  QUIRE_RETURN_IF_ERROR(CheckSwapOuts(plan.swap_outs));
  QUIRE_RETURN_IF_ERROR(CheckSwapIns(plan.swap_ins));
  QUIRE_RETURN_IF_ERROR(CheckCopies(plan.copies));
  for (size_t i = 0; i < plan.introductions.size(); ++i) {
    QUIRE_RETURN_IF_ERROR(CheckIntroduction(plan.introductions[i]));
    introduction_index_[plan.introductions[i].handle] = i;
  }
  for (const SequenceSlice& slice : plan.slices) {
    QUIRE_ASSIGN_OR_RETURN(KnownSequence sequence, Look(plan, slice.handle, find));
    QUIRE_RETURN_IF_ERROR(CheckSlice(slice, sequence));
  }
  for (SequenceHandle handle : plan.releases) {
    QUIRE_RETURN_IF_ERROR(CheckRelease(handle, find));
  }
  return CheckSpare(plan.spare);
}

absl::Status StepPlanChecker::CheckCounts(const StepPlan& plan) const {
  auto count = [](const auto& list) { return static_cast<int64_t>(list.size()); };
  QUIRE_RETURN_IF_ERROR(
      CheckStepLimit("introductions", count(plan.introductions), limits_.max_sequences));
  QUIRE_RETURN_IF_ERROR(CheckStepLimit("slices", count(plan.slices), limits_.max_sequences));
  QUIRE_RETURN_IF_ERROR(CheckStepLimit("releases", count(plan.releases), limits_.max_sequences));
  int64_t num_tokens = 0;  // cannot overflow: at most 4096 slices of less than 2^31 tokens
  for (const SequenceSlice& slice : plan.slices) {
    if (slice.num_tokens <= 0) {
      return Invalid({.reason = "LENGTH",
                      .field = "slices.num_tokens",
                      .rule = "must be positive",
                      .got = slice.num_tokens,
                      .limit = limits_.max_tokens_per_step});
    }
    num_tokens += slice.num_tokens;
  }
  return CheckStepLimit("slices.num_tokens", num_tokens, limits_.max_tokens_per_step);
}

absl::Status StepPlanChecker::CheckBlock(std::string_view field, BlockId block) const {
  if (block > kNullBlockId && block < limits_.num_blocks) {
    return absl::OkStatus();
  }
  return Invalid({.reason = "BLOCK_RANGE",
                  .field = field,
                  .rule = "block id out of range",
                  .got = block,
                  .limit = limits_.num_blocks - 1});
}

absl::Status StepPlanChecker::CheckHostBlock(std::string_view field, HostBlockId host_block) const {
  if (host_block >= 0 && host_block < limits_.num_host_blocks) {
    return absl::OkStatus();
  }
  return Invalid({.reason = "BLOCK_RANGE",
                  .field = field,
                  .rule = "host block id out of range",
                  .got = host_block,
                  .limit = limits_.num_host_blocks - 1});
}

// If the worker uses hints, checks only the block's range, because a hint may name a block of
// another sequence. Else a hint must not be set.
absl::Status StepPlanChecker::CheckHint(std::string_view field, BlockId block) const {
  if (limits_.wants_next_blocks) {
    return CheckBlock(field, block);
  }
  return Invalid({.reason = "BLOCK_RANGE",
                  .field = field,
                  .rule = "must not be set, because this worker uses no next blocks",
                  .got = block,
                  .limit = kNullBlockId});
}

// A spare handle that a sequence already has is no fault: hints may be wrong.
absl::Status StepPlanChecker::CheckSpare(const SpareWindow& spare) const {
  if (spare.block_ids.empty()) {
    return absl::OkStatus();
  }
  QUIRE_RETURN_IF_ERROR(CheckHandle("spare.handle", spare.handle, limits_.max_sequences));
  const auto num_blocks = static_cast<int64_t>(spare.block_ids.size());
  if (num_blocks > MaxSpareBlocks(limits_)) {
    return Invalid({.reason = "LENGTH",
                    .field = "spare.block_ids",
                    .rule = "too many blocks",
                    .got = num_blocks,
                    .limit = MaxSpareBlocks(limits_)});
  }
  for (const BlockId block : spare.block_ids) {
    QUIRE_RETURN_IF_ERROR(CheckHint("spare.block_ids", block));
  }
  return absl::OkStatus();
}

absl::Status StepPlanChecker::CheckSwapOuts(const std::vector<BlockSwapOut>& swaps) {
  for (const BlockSwapOut& swap : swaps) {
    QUIRE_RETURN_IF_ERROR(CheckBlock("swap_outs.block", swap.block));
    QUIRE_RETURN_IF_ERROR(CheckHostBlock("swap_outs.host_block", swap.host_block));
    if (!swapped_out_.Insert(swap.block)) {
      return Conflict("swap_outs.block", "swapped out twice", swap.block);
    }
    if (!host_swapped_.Insert(swap.host_block)) {
      return Conflict("swap_outs.host_block", "is the target of two swaps", swap.host_block);
    }
  }
  return absl::OkStatus();
}

absl::Status StepPlanChecker::CheckSwapIns(const std::vector<BlockSwapIn>& swaps) {
  for (const BlockSwapIn& swap : swaps) {
    QUIRE_RETURN_IF_ERROR(CheckBlock("swap_ins.block", swap.block));
    QUIRE_RETURN_IF_ERROR(CheckHostBlock("swap_ins.host_block", swap.host_block));
    if (!swapped_in_.Insert(swap.block)) {
      return Conflict("swap_ins.block", "is the target of two swaps", swap.block);
    }
    if (swapped_out_.Contains(swap.block)) {
      return Conflict("swap_ins.block", "is being swapped out", swap.block);
    }
    if (!host_swapped_.Insert(swap.host_block)) {
      return Conflict("swap_ins.host_block", "swapped twice", swap.host_block);
    }
  }
  return absl::OkStatus();
}

absl::Status StepPlanChecker::CheckCopies(const std::vector<BlockCopy>& copies) {
  for (const BlockCopy& copy : copies) {
    QUIRE_RETURN_IF_ERROR(CheckBlock("copies.src", copy.src));
    QUIRE_RETURN_IF_ERROR(CheckBlock("copies.dst", copy.dst));
    copy_sources_.Insert(copy.src);
    if (!copy_targets_.Insert(copy.dst)) {
      return Conflict("copies.dst", "is the target of two copies", copy.dst);
    }
  }
  for (const BlockCopy& copy : copies) {
    if (copy_sources_.Contains(copy.dst)) {
      return Conflict("copies.dst", "is also a source", copy.dst);
    }
    if (swapped_out_.Contains(copy.dst) || swapped_in_.Contains(copy.dst)) {
      return Conflict("copies.dst", "is being swapped", copy.dst);
    }
  }
  return absl::OkStatus();
}

absl::Status StepPlanChecker::CheckIntroduction(const SequenceIntroduction& introduction) {
  QUIRE_RETURN_IF_ERROR(
      CheckHandle("introductions.handle", introduction.handle, limits_.max_sequences));
  if (!introduced_.Insert(introduction.handle)) {
    return HandleFault("introductions.handle", "introduced twice", introduction.handle);
  }
  QUIRE_RETURN_IF_ERROR(CheckTokens(introduction));
  QUIRE_RETURN_IF_ERROR(CheckTable({}, introduction.block_ids, introduction.num_computed_tokens));
  int64_t capacity =
      static_cast<int64_t>(introduction.block_ids.size()) * limits_.block_size_tokens;
  if (introduction.num_computed_tokens > capacity) {
    return Invalid({.reason = "LENGTH",
                    .field = "introductions.num_computed_tokens",
                    .rule = "more tokens than the blocks hold",
                    .got = introduction.num_computed_tokens,
                    .limit = capacity});
  }
  return Validate(introduction.sampling, limits_.vocab_size);
}

absl::Status StepPlanChecker::CheckTokens(const SequenceIntroduction& introduction) const {
  auto num_tokens = static_cast<int64_t>(introduction.token_ids.size());
  if (num_tokens == 0 || num_tokens > limits_.max_model_len) {
    return Invalid({.reason = "LENGTH",
                    .field = "introductions.token_ids",
                    .rule = "must hold at least one token and fit the model",
                    .got = num_tokens,
                    .limit = limits_.max_model_len});
  }
  if (introduction.num_prompt_tokens < 1 || introduction.num_prompt_tokens > num_tokens) {
    return Invalid({.reason = "LENGTH",
                    .field = "introductions.num_prompt_tokens",
                    .rule = "must be in [1, number of tokens]",
                    .got = introduction.num_prompt_tokens,
                    .limit = num_tokens});
  }
  if (introduction.num_computed_tokens < 0 || introduction.num_computed_tokens >= num_tokens) {
    return Invalid({.reason = "POSITION_RANGE",
                    .field = "introductions.num_computed_tokens",
                    .rule = "must be in [0, number of tokens)",
                    .got = introduction.num_computed_tokens,
                    .limit = num_tokens - 1});
  }
  if (introduction.sequence_index < 0) {
    return Invalid({.reason = "LENGTH",
                    .field = "introductions.sequence_index",
                    .rule = "must not be negative",
                    .got = introduction.sequence_index,
                    .limit = std::numeric_limits<int32_t>::max()});
  }
  for (TokenId token_id : introduction.token_ids) {
    QUIRE_RETURN_IF_ERROR(CheckToken("introductions.token_ids", token_id));
  }
  return absl::OkStatus();
}

absl::Status StepPlanChecker::CheckToken(std::string_view field, TokenId token_id) const {
  if (token_id >= 0 && token_id < limits_.vocab_size) {
    return absl::OkStatus();
  }
  return Invalid({.reason = "TOKEN_ID_RANGE",
                  .field = field,
                  .rule = "token id out of range",
                  .got = token_id,
                  .limit = limits_.vocab_size - 1});
}

// Checks the table's length, the range of new_ids, and that no block is twice in the table. The
// range of old_ids was checked when these ids were new. A block of old_ids before the sliding
// window may appear again: the sequence no longer reads it, so the scheduler may have reused it.
absl::Status StepPlanChecker::CheckTable(std::span<const BlockId> old_ids,
                                         std::span<const BlockId> new_ids,
                                         int32_t num_computed_tokens) {
  if (new_ids.empty()) {
    return absl::OkStatus();
  }
  auto num_blocks = static_cast<int64_t>(old_ids.size() + new_ids.size());
  int32_t limit = DivCeil(limits_.max_model_len, limits_.block_size_tokens);
  if (num_blocks > limit) {
    return Invalid({.reason = "LENGTH",
                    .field = "block_ids",
                    .rule = "block table too long",
                    .got = num_blocks,
                    .limit = limit});
  }
  table_.Begin();
  const auto num_passed = static_cast<size_t>(NumBlocksBeforeWindow(
      num_computed_tokens, limits_.sliding_window, limits_.block_size_tokens));
  for (size_t index = num_passed; index < old_ids.size(); ++index) {
    table_.Insert(old_ids[index]);
  }
  for (size_t i = 0; i < new_ids.size(); ++i) {
    const BlockId block = new_ids[i];
    if (block == kNullBlockId && old_ids.size() + i < num_passed) {
      continue;
    }
    QUIRE_RETURN_IF_ERROR(CheckBlock("block_ids", block));
    if (!table_.Insert(block)) {
      return Conflict("block_ids", "is twice in one block table", block);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<KnownSequence> StepPlanChecker::Look(const StepPlan& plan,
                                                    SequenceHandle handle,
                                                    FindSequence find) const {
  QUIRE_RETURN_IF_ERROR(CheckHandle("slices.handle", handle, limits_.max_sequences));
  if (introduced_.Contains(handle)) {
    const SequenceIntroduction& introduction = plan.introductions[introduction_index_[handle]];
    return KnownSequence{.num_known_tokens = static_cast<int32_t>(introduction.token_ids.size()),
                         .num_computed_tokens = introduction.num_computed_tokens,
                         .block_ids = introduction.block_ids};
  }
  std::optional<KnownSequence> sequence = find(handle);
  if (!sequence.has_value()) {
    return HandleFault("slices.handle", "no such sequence", handle);
  }
  return *sequence;
}

absl::Status StepPlanChecker::CheckSlice(const SequenceSlice& slice,
                                         const KnownSequence& sequence) {
  if (!sliced_.Insert(slice.handle)) {
    return HandleFault("slices.handle", "has two slices in one step", slice.handle);
  }
  int64_t end = int64_t{sequence.num_computed_tokens} + slice.num_tokens;
  if (end > sequence.num_known_tokens) {
    return Invalid({.reason = "POSITION_RANGE",
                    .field = "slices.num_tokens",
                    .rule = "ends past the last known token",
                    .got = end,
                    .limit = sequence.num_known_tokens});
  }
  // The token that is sampled after the slice must fit, too.
  if (end >= limits_.max_model_len) {
    return Invalid({.reason = "LENGTH",
                    .field = "slices.num_tokens",
                    .rule = "the sequence would exceed max_model_len",
                    .got = end + 1,
                    .limit = limits_.max_model_len});
  }
  if (slice.forced_token_id.has_value()) {
    QUIRE_RETURN_IF_ERROR(CheckToken("slices.forced_token_id", *slice.forced_token_id));
  }
  if (slice.next_block_id.has_value()) {
    QUIRE_RETURN_IF_ERROR(CheckHint("slices.next_block_id", *slice.next_block_id));
  }
  QUIRE_RETURN_IF_ERROR(
      CheckTable(sequence.block_ids, slice.new_block_ids, sequence.num_computed_tokens));
  int64_t capacity = static_cast<int64_t>(sequence.block_ids.size() + slice.new_block_ids.size()) *
                     limits_.block_size_tokens;
  if (end > capacity) {
    return Invalid({.reason = "LENGTH",
                    .field = "slices.num_tokens",
                    .rule = "more tokens than the blocks hold",
                    .got = end,
                    .limit = capacity});
  }
  return CheckWrites(slice, sequence);
}

absl::Status StepPlanChecker::CheckWrites(const SequenceSlice& slice,
                                          const KnownSequence& sequence) {
  int32_t end = sequence.num_computed_tokens + slice.num_tokens;
  auto first = static_cast<size_t>(sequence.num_computed_tokens / limits_.block_size_tokens);
  auto last = static_cast<size_t>((end - 1) / limits_.block_size_tokens);
  size_t num_old = sequence.block_ids.size();
  for (size_t index = first; index <= last; ++index) {
    BlockId block =
        index < num_old ? sequence.block_ids[index] : slice.new_block_ids[index - num_old];
    if (!written_.Insert(block)) {
      return Conflict("slices.block_ids", "written by two sequences", block);
    }
    if (swapped_out_.Contains(block)) {
      return Conflict("slices.block_ids", "written while it is swapped out", block);
    }
  }
  return absl::OkStatus();
}

absl::Status StepPlanChecker::CheckRelease(SequenceHandle handle, FindSequence find) {
  QUIRE_RETURN_IF_ERROR(CheckHandle("releases", handle, limits_.max_sequences));
  if (!released_.Insert(handle)) {
    return HandleFault("releases", "released twice", handle);
  }
  if (!introduced_.Contains(handle) && !find(handle).has_value()) {
    return HandleFault("releases", "no such sequence", handle);
  }
  return absl::OkStatus();
}

}  // namespace quire
