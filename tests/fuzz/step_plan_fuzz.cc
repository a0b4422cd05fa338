// Bytes as a StepRequest, to a worker with a few sequences: refused with a reason, or every number
// of the plan is in its limits, and the plan is the same after another trip over the wire.
#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/step/step_plan_check.h"
#include "common/wire/step_codec.h"

namespace {

using quire::BlockId;

constexpr quire::StepLimits kLimits = {.num_blocks = 12,
                                       .num_host_blocks = 4,
                                       .block_size_tokens = 4,
                                       .max_sequences = 6,
                                       .max_tokens_per_step = 16,
                                       .max_model_len = 32,
                                       .vocab_size = 50,
                                       .sliding_window = 0};

// What the worker knows: one sequence in the middle of its prompt, one that decodes.
std::optional<quire::KnownSequence> Find(quire::SequenceHandle handle) {
  QUIRE_CHECK_LT(handle, static_cast<quire::SequenceHandle>(kLimits.max_sequences));
  static constexpr std::array<BlockId, 1> kPrompt = {1};
  static constexpr std::array<BlockId, 2> kDecode = {2, 3};
  switch (handle) {
    case 0:
      return quire::KnownSequence{
          .num_known_tokens = 10, .num_computed_tokens = 3, .block_ids = kPrompt};
    case 1:
      return quire::KnownSequence{
          .num_known_tokens = 8, .num_computed_tokens = 7, .block_ids = kDecode};
    default:
      return std::nullopt;
  }
}

void CheckBlock(BlockId block) { QUIRE_CHECK(block >= 1 && block < kLimits.num_blocks); }

void CheckBlocks(const std::vector<BlockId>& blocks) {
  for (BlockId block : blocks) {
    CheckBlock(block);
  }
}

void CheckToken(quire::TokenId id) { QUIRE_CHECK(id >= 0 && id < kLimits.vocab_size); }

void CheckHandle(quire::SequenceHandle handle) {
  QUIRE_CHECK_LT(handle, static_cast<quire::SequenceHandle>(kLimits.max_sequences));
}

void CheckSwapsAndCopies(const quire::StepPlan& plan) {
  for (const quire::BlockSwapOut& swap : plan.swap_outs) {
    CheckBlock(swap.block);
    QUIRE_CHECK(swap.host_block >= 0 && swap.host_block < kLimits.num_host_blocks);
  }
  for (const quire::BlockSwapIn& swap : plan.swap_ins) {
    CheckBlock(swap.block);
    QUIRE_CHECK(swap.host_block >= 0 && swap.host_block < kLimits.num_host_blocks);
  }
  for (const quire::BlockCopy& copy : plan.copies) {
    CheckBlock(copy.src);
    CheckBlock(copy.dst);
  }
}

void CheckSequences(const quire::StepPlan& plan) {
  for (const quire::SequenceIntroduction& introduction : plan.introductions) {
    CheckHandle(introduction.handle);
    CheckBlocks(introduction.block_ids);
    const auto num_tokens = static_cast<int32_t>(introduction.token_ids.size());
    QUIRE_CHECK(num_tokens > 0 && num_tokens <= kLimits.max_model_len);
    QUIRE_CHECK(introduction.num_prompt_tokens > 0 && introduction.num_prompt_tokens <= num_tokens);
    QUIRE_CHECK(introduction.num_computed_tokens >= 0 &&
                introduction.num_computed_tokens < num_tokens);
    for (quire::TokenId id : introduction.token_ids) {
      CheckToken(id);
    }
  }
  QUIRE_CHECK_LE(plan.slices.size(), static_cast<size_t>(kLimits.max_sequences));
  int64_t num_tokens = 0;
  for (const quire::SequenceSlice& slice : plan.slices) {
    CheckHandle(slice.handle);
    CheckBlocks(slice.new_block_ids);
    QUIRE_CHECK(slice.num_tokens > 0);
    num_tokens += slice.num_tokens;
    CheckToken(slice.forced_token_id.value_or(0));
  }
  QUIRE_CHECK_LE(num_tokens, kLimits.max_tokens_per_step);
  for (quire::SequenceHandle handle : plan.releases) {
    CheckHandle(handle);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  quire::v1::StepRequest request;
  if (!request.ParseFromArray(data, static_cast<int>(size))) {
    return 0;
  }
  const auto plan = quire::DecodePlan(request);
  if (!plan.ok()) {
    QUIRE_CHECK_EQ(quire::ReasonOf(plan.status()), "MALFORMED_PROTO");
    return 0;
  }
  static auto* const checker = new quire::StepPlanChecker(kLimits);
  const absl::Status status = checker->Check(*plan, Find);
  if (!status.ok()) {
    QUIRE_CHECK(!quire::ReasonOf(status).empty());
    return 0;
  }
  CheckSwapsAndCopies(*plan);
  CheckSequences(*plan);
  quire::v1::StepRequest again;
  quire::EncodePlan(*plan, &again);
  const auto back = quire::DecodePlan(again);
  QUIRE_CHECK(back.ok() && *back == *plan);
  QUIRE_CHECK_EQ(quire::DigestOf(*back), quire::DigestOf(*plan));
  return 0;
}
