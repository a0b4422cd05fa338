#include "tests/worker/runtime/swap_traffic.h"
#include "tests/support/with_digest.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/math.h"

namespace quire {
namespace {

constexpr int kMaxSteps = 10000;

}  // namespace

SwapTraffic::SwapTraffic(StepExecutor& executor,
                         DType kv_cache_dtype,
                         const SwapTrafficOptions& options)
    : executor_(executor), options_(options), random_(options.seed) {
  const ModelConfig& config = executor.model().config();
  const int32_t max_len = options.max_prompt_tokens + options.num_output_tokens + 1;
  const absl::Status begun = executor.BeginEpoch(
      {.scheduler_incarnation = 1,
       .group_epoch = executor.order().group_epoch() + 1,
       .limits = {.num_blocks = options.num_blocks,
                  .num_host_blocks = options.num_host_blocks,
                  .block_size_tokens = options.block_size_tokens,
                  .max_sequences = options.num_sequences,
                  .max_tokens_per_step = options.num_sequences * options.max_prompt_tokens,
                  .max_model_len = max_len},
       .kv_cache_dtype = kv_cache_dtype});
  QUIRE_CHECK(begun.ok());
  for (BlockId block = 1; block < options.num_blocks; ++block) {
    free_blocks_.insert(block);
  }
  for (HostBlockId block = 0; block < options.num_host_blocks; ++block) {
    free_host_blocks_.insert(block);
  }
  // Prompts come from a generator of their own, so that they are the same under any swaps.
  Random prompts(options.seed);
  for (int32_t i = 0; i < options.num_sequences; ++i) {
    Sequence sequence;
    sequence.num_prompt_tokens = prompts.Between(1, options.max_prompt_tokens);
    for (int32_t k = 0; k < sequence.num_prompt_tokens; ++k) {
      sequence.token_ids.push_back(prompts.Below(config.vocab_size));
    }
    sequences_.push_back(std::move(sequence));
  }
}

int32_t SwapTraffic::NumBlocksFor(int32_t num_tokens) const {
  return DivCeil(num_tokens, options_.block_size_tokens);
}

// At random, so that blocks come back to other places.
bool SwapTraffic::TakeBlocks(int32_t count, std::vector<BlockId>* taken) {
  if (static_cast<int32_t>(free_blocks_.size()) < count) {
    return false;
  }
  for (; count > 0; --count) {
    auto chosen =
        std::next(free_blocks_.begin(), random_.Below(static_cast<int32_t>(free_blocks_.size())));
    taken->push_back(*chosen);
    free_blocks_.erase(chosen);
  }
  return true;
}

void SwapTraffic::SwapOut(SequenceHandle handle, StepPlan* plan) {
  Sequence& sequence = sequences_[handle];
  for (BlockId block : sequence.block_ids) {
    const HostBlockId host_block = *free_host_blocks_.begin();
    free_host_blocks_.erase(free_host_blocks_.begin());
    plan->swap_outs.push_back({.block = block, .host_block = host_block});
    sequence.host_block_ids.push_back(host_block);
    fenced_blocks_.push_back({.id = block, .step_id = step_id_});
  }
  sequence.block_ids.clear();
  sequence.generation = step_id_;
  sequence.stage = Stage::kSwapped;
  plan->releases.push_back(handle);
  ++num_swapped_out_;
}

bool SwapTraffic::SwapIn(SequenceHandle handle, StepPlan* plan) {
  Sequence& sequence = sequences_[handle];
  const auto count = static_cast<int32_t>(sequence.host_block_ids.size());
  if (!TakeBlocks(count, &sequence.block_ids)) {
    return false;
  }
  for (size_t i = 0; i < sequence.host_block_ids.size(); ++i) {
    const HostBlockId host_block = sequence.host_block_ids[i];
    plan->swap_ins.push_back({.block = sequence.block_ids[i],
                              .host_block = host_block,
                              .generation = sequence.generation});
    fenced_host_blocks_.push_back({.id = host_block, .step_id = step_id_});
  }
  sequence.host_block_ids.clear();
  return true;
}

void SwapTraffic::Introduce(SequenceHandle handle, StepPlan* plan) const {
  const Sequence& sequence = sequences_[handle];
  SamplingParams greedy;
  greedy.temperature = 0.0F;
  plan->introductions.push_back({.handle = handle,
                                 .token_ids = sequence.token_ids,
                                 .num_prompt_tokens = sequence.num_prompt_tokens,
                                 .num_computed_tokens = sequence.num_computed_tokens,
                                 .block_ids = sequence.block_ids,
                                 .sequence_index = 0,
                                 .sampling = greedy});
}

void SwapTraffic::AddSlice(SequenceHandle handle, StepPlan* plan) {
  Sequence& sequence = sequences_[handle];
  const auto num_known = static_cast<int32_t>(sequence.token_ids.size());
  const int32_t num_left = num_known - sequence.num_computed_tokens;
  const int32_t num_tokens = random_.Between(1, std::min(num_left, options_.max_slice_tokens));
  const auto num_held = static_cast<int32_t>(sequence.block_ids.size());
  std::vector<BlockId> new_blocks;
  const int32_t num_new = NumBlocksFor(sequence.num_computed_tokens + num_tokens) - num_held;
  if (num_new > 0 && !TakeBlocks(num_new, &new_blocks)) {
    return;
  }
  sequence.block_ids.insert(sequence.block_ids.end(), new_blocks.begin(), new_blocks.end());
  sequence.num_computed_tokens += num_tokens;
  plan->slices.push_back(
      {.handle = handle, .num_tokens = num_tokens, .new_block_ids = std::move(new_blocks)});
}

void SwapTraffic::PlanSequence(SequenceHandle handle, StepPlan* plan) {
  Sequence& sequence = sequences_[handle];
  switch (sequence.stage) {
    case Stage::kDone:
      return;
    case Stage::kWaiting:
      Introduce(handle, plan);
      sequence.stage = Stage::kRunning;
      AddSlice(handle, plan);
      return;
    case Stage::kSwapped:
      // Not in the step that swapped it out; sometimes introduced a step after its blocks come.
      if (sequence.block_ids.empty() && (random_.OneIn(2) || !SwapIn(handle, plan))) {
        return;
      }
      if (random_.OneIn(2)) {
        return;
      }
      Introduce(handle, plan);
      sequence.stage = Stage::kRunning;
      AddSlice(handle, plan);
      return;
    case Stage::kRunning:
      break;
  }
  const bool fits_host = sequence.block_ids.size() <= free_host_blocks_.size();
  const bool is_worth_it = options_.swap_out_one_in > 0 && !sequence.block_ids.empty();
  // If there is no room for all sequences, one of them must leave.
  const bool has_room = free_blocks_.size() > sequence.block_ids.size();
  if (is_worth_it && fits_host && (!has_room || random_.OneIn(options_.swap_out_one_in))) {
    SwapOut(handle, plan);
    return;
  }
  AddSlice(handle, plan);
}

void SwapTraffic::Apply(const StepResult& result) {
  for (const SampledToken& sampled : result.sampled) {
    Sequence& sequence = sequences_[sampled.handle];
    sequence.token_ids.push_back(sampled.token_id);
  }
  num_steps_ahead_ += result.swaps_done_step_id < step_id_ ? 1 : 0;
  const uint64_t done = options_.waits_for_swaps ? result.swaps_done_step_id : step_id_;
  auto release = [done](auto* fenced, auto* free) {
    std::erase_if(*fenced, [&](const auto& each) {
      return each.step_id <= done && free->insert(each.id).second;
    });
  };
  release(&fenced_blocks_, &free_blocks_);
  release(&fenced_host_blocks_, &free_host_blocks_);
}

std::vector<std::vector<TokenId>> SwapTraffic::Run() {
  auto is_done = [](const Sequence& sequence) { return sequence.stage == Stage::kDone; };
  while (!std::all_of(sequences_.begin(), sequences_.end(), is_done)) {
    QUIRE_CHECK(step_id_ < kMaxSteps);
    ++step_id_;
    StepPlan plan;
    plan.header = {.scheduler_incarnation = 1,
                   .group_epoch = executor_.order().group_epoch(),
                   .step_id = step_id_};
    for (SequenceHandle handle = 0; handle < sequences_.size(); ++handle) {
      Sequence& sequence = sequences_[handle];
      const auto num_output =
          static_cast<int32_t>(sequence.token_ids.size()) - sequence.num_prompt_tokens;
      if (sequence.stage == Stage::kRunning && num_output >= options_.num_output_tokens) {
        plan.releases.push_back(handle);
        sequence.stage = Stage::kDone;
        for (BlockId block : sequence.block_ids) {
          fenced_blocks_.push_back({.id = block, .step_id = step_id_});
        }
        continue;
      }
      PlanSequence(handle, &plan);
    }
    auto result = executor_.Execute(WithDigest(plan));
    QUIRE_CHECK(result.ok() && (*result)->failed_swap_ins.empty());
    Apply(**result);
  }
  std::vector<std::vector<TokenId>> answers;
  for (Sequence& sequence : sequences_) {
    answers.push_back(std::move(sequence.token_ids));
  }
  return answers;
}

}  // namespace quire
