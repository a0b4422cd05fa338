// Decodes bytes as a StepRequest, for a worker with a few sequences. The plan is refused with a
// reason, or all its numbers are within the limits and no slice writes another sequence's block. An
// accepted plan survives another trip over the wire.
#include <array>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/model/sampling_params_check.h"
#include "common/step/step_plan_check.h"
#include "common/wire/step_codec.h"
#include "tests/fuzz/flip_a_bit.h"
#include "tests/fuzz/fuzz_verdict.h"

namespace {

using quire::BlockId;

constexpr quire::StepLimits kLimits = {.num_blocks = 12,
                                       .num_host_blocks = 4,
                                       .block_size_tokens = 4,
                                       .max_sequences = 6,
                                       .max_tokens_per_step = 16,
                                       .max_model_len = 32,
                                       .vocab_size = 50,
                                       .sliding_window = 0,
                                       .wants_next_blocks = true};

// The worker knows two sequences: one in the middle of its prompt, one that decodes.
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

// Inserts the value. REQUIRES: it is not in the set.
template <typename T>
void CheckNew(T value, std::set<T>* seen) {
  QUIRE_CHECK(seen->insert(value).second);
}

void CheckHostBlock(quire::HostBlockId block, std::set<quire::HostBlockId>* swapped) {
  QUIRE_CHECK(block >= 0 && block < kLimits.num_host_blocks);
  CheckNew(block, swapped);
}

void CheckSwapsAndCopies(const quire::StepPlan& plan) {
  std::set<BlockId> moved;
  std::set<quire::HostBlockId> host_swapped;
  for (const quire::BlockSwapOut& swap : plan.swap_outs) {
    CheckBlock(swap.block);
    CheckNew(swap.block, &moved);
    CheckHostBlock(swap.host_block, &host_swapped);
  }
  for (const quire::BlockSwapIn& swap : plan.swap_ins) {
    CheckBlock(swap.block);
    CheckNew(swap.block, &moved);
    CheckHostBlock(swap.host_block, &host_swapped);
  }
  for (const quire::BlockCopy& copy : plan.copies) {
    CheckBlock(copy.src);
    CheckBlock(copy.dst);
    CheckNew(copy.dst, &moved);
  }
  for (const quire::BlockCopy& copy : plan.copies) {
    for (const quire::BlockCopy& other : plan.copies) {
      QUIRE_CHECK(copy.dst != other.src);
    }
  }
}

// Checks that the blocks suffice for so many tokens, and that no block occurs twice.
void CheckTable(const std::vector<BlockId>& blocks, int64_t num_tokens) {
  QUIRE_CHECK(static_cast<int64_t>(blocks.size()) * kLimits.block_size_tokens >= num_tokens);
  QUIRE_CHECK_LE(static_cast<int64_t>(blocks.size()) * kLimits.block_size_tokens,
                 kLimits.max_model_len);
  QUIRE_CHECK_EQ(std::set<BlockId>(blocks.begin(), blocks.end()).size(), blocks.size());
}

void CheckIntroductions(const quire::StepPlan& plan) {
  QUIRE_CHECK_LE(plan.introductions.size(), static_cast<size_t>(kLimits.max_sequences));
  std::set<quire::SequenceHandle> handles;
  for (const quire::SequenceIntroduction& introduction : plan.introductions) {
    CheckHandle(introduction.handle);
    CheckNew(introduction.handle, &handles);
    CheckBlocks(introduction.block_ids);
    const auto num_tokens = static_cast<int32_t>(introduction.token_ids.size());
    QUIRE_CHECK(num_tokens > 0 && num_tokens <= kLimits.max_model_len);
    QUIRE_CHECK(introduction.num_prompt_tokens > 0 && introduction.num_prompt_tokens <= num_tokens);
    QUIRE_CHECK(introduction.num_computed_tokens >= 0 &&
                introduction.num_computed_tokens < num_tokens);
    CheckTable(introduction.block_ids, introduction.num_computed_tokens);
    QUIRE_CHECK(introduction.sequence_index >= 0);
    QUIRE_CHECK(quire::Validate(introduction.sampling, kLimits.vocab_size).ok());
    for (quire::TokenId id : introduction.token_ids) {
      CheckToken(id);
    }
  }
}

// The sequence as the worker knows it after the plan's introductions, when its slices are computed.
std::optional<quire::KnownSequence> FindIn(const quire::StepPlan& plan,
                                           quire::SequenceHandle handle) {
  for (const quire::SequenceIntroduction& introduction : plan.introductions) {
    if (introduction.handle == handle) {
      return quire::KnownSequence{
          .num_known_tokens = static_cast<int32_t>(introduction.token_ids.size()),
          .num_computed_tokens = introduction.num_computed_tokens,
          .block_ids = introduction.block_ids};
    }
  }
  return Find(handle);
}

void CheckSlice(const quire::StepPlan& plan,
                const quire::SequenceSlice& slice,
                std::set<BlockId>* written) {
  CheckBlocks(slice.new_block_ids);
  CheckToken(slice.forced_token_id.value_or(0));
  CheckBlock(slice.next_block_id.value_or(1));
  const auto sequence = FindIn(plan, slice.handle);
  QUIRE_CHECK(slice.num_tokens > 0 && sequence.has_value());
  const int64_t begin = sequence->num_computed_tokens;
  const int64_t end = begin + slice.num_tokens;
  QUIRE_CHECK(end <= sequence->num_known_tokens && end < kLimits.max_model_len);
  std::vector<BlockId> table(sequence->block_ids.begin(), sequence->block_ids.end());
  table.insert(table.end(), slice.new_block_ids.begin(), slice.new_block_ids.end());
  CheckTable(table, end);
  for (int64_t i = begin / kLimits.block_size_tokens; i * kLimits.block_size_tokens < end; ++i) {
    CheckNew(table[static_cast<size_t>(i)], written);
  }
}

void CheckSlices(const quire::StepPlan& plan) {
  QUIRE_CHECK_LE(plan.slices.size(), static_cast<size_t>(kLimits.max_sequences));
  std::set<quire::SequenceHandle> handles;
  std::set<BlockId> written;
  for (const quire::BlockSwapOut& swap : plan.swap_outs) {
    written.insert(swap.block);
  }
  int64_t num_tokens = 0;
  for (const quire::SequenceSlice& slice : plan.slices) {
    CheckHandle(slice.handle);
    CheckNew(slice.handle, &handles);
    CheckSlice(plan, slice, &written);
    num_tokens += slice.num_tokens;
  }
  QUIRE_CHECK_LE(num_tokens, kLimits.max_tokens_per_step);
}

void CheckReleases(const quire::StepPlan& plan) {
  std::set<quire::SequenceHandle> handles;
  for (quire::SequenceHandle handle : plan.releases) {
    CheckHandle(handle);
    CheckNew(handle, &handles);
    QUIRE_CHECK(FindIn(plan, handle).has_value());
  }
}

// A damaged message that decodes to another plan has another digest.
void CheckDamaged(const quire::StepPlan& plan, const quire::v1::StepRequest& request) {
  std::string damaged = request.SerializeAsString();
  quire::v1::StepRequest other;
  if (damaged.empty()) {
    return;
  }
  quire::FlipABit(&damaged);
  if (!other.ParseFromString(damaged)) {
    return;
  }
  auto other_plan = quire::DecodePlan(other);
  if (other_plan.ok()) {
    other_plan->digest = plan.digest;
    QUIRE_CHECK(*other_plan == plan || quire::DigestOf(*other_plan) != quire::DigestOf(plan));
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
  CheckIntroductions(*plan);
  CheckSlices(*plan);
  CheckReleases(*plan);
  quire::v1::StepRequest again;
  quire::EncodePlan(*plan, &again);
  const auto back = quire::DecodePlan(again);
  QUIRE_CHECK(back.ok() && *back == *plan);
  QUIRE_CHECK_EQ(quire::DigestOf(*back), quire::DigestOf(*plan));
  CheckDamaged(*plan, again);
  quire::is_accepted = true;
  return 0;
}
