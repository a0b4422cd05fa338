#include "common/step/step_plan.h"

#include "common/base/fold_hash.h"

namespace quire {
namespace {

void AddSampling(FoldHash& digest, const SamplingParams& params) {
  digest.AddFloat(params.temperature);
  digest.AddInt(params.top_k);
  digest.AddFloat(params.top_p);
  digest.AddFloat(params.min_p);
  digest.AddFloat(params.repetition_penalty);
  digest.AddFloat(params.presence_penalty);
  digest.AddFloat(params.frequency_penalty);
  digest.Add(params.logit_bias.size());
  for (const auto& [token, bias] : params.logit_bias) {
    digest.AddInt(token);
    digest.AddFloat(bias);
  }
  digest.AddInt(params.num_logprobs);
  digest.AddInt(params.num_prompt_logprobs);
  digest.AddInt(params.min_tokens);
  digest.AddInts(params.banned_before_min_tokens);
  digest.Add(params.seed);
}

void AddIntroduction(FoldHash& digest, const SequenceIntroduction& introduction) {
  digest.Add(introduction.handle);
  digest.AddInts(introduction.token_ids);
  digest.AddInt(introduction.num_prompt_tokens);
  digest.AddInt(introduction.num_computed_tokens);
  digest.AddInts(introduction.block_ids);
  digest.AddInt(introduction.sequence_index);
  AddSampling(digest, introduction.sampling);
}

void AddSwaps(FoldHash& digest, const StepPlan& plan) {
  digest.Add(plan.swap_outs.size());
  for (const BlockSwapOut& swap : plan.swap_outs) {
    digest.AddInt(swap.block);
    digest.AddInt(swap.host_block);
  }
  digest.Add(plan.swap_ins.size());
  for (const BlockSwapIn& swap : plan.swap_ins) {
    digest.AddInt(swap.block);
    digest.AddInt(swap.host_block);
    digest.Add(swap.generation);
  }
}

}  // namespace

uint64_t DigestOf(const StepPlan& plan) {
  FoldHash digest;
  digest.Add(plan.header.scheduler_incarnation);
  digest.Add(plan.header.group_epoch);
  digest.Add(plan.header.step_id);
  AddSwaps(digest, plan);
  digest.Add(plan.copies.size());
  for (const BlockCopy& copy : plan.copies) {
    digest.AddInt(copy.src);
    digest.AddInt(copy.dst);
  }
  digest.Add(plan.introductions.size());
  for (const SequenceIntroduction& introduction : plan.introductions) {
    AddIntroduction(digest, introduction);
  }
  digest.Add(plan.slices.size());
  for (const SequenceSlice& slice : plan.slices) {
    // Two fields in one word. -1 stands for no forced token, since token ids are not negative.
    const auto forced = static_cast<uint32_t>(slice.forced_token_id.value_or(-1));
    digest.Add(uint64_t{forced} << 32 | slice.handle);
    // Two fields in one word. The null block stands for no next block.
    const auto next_block = static_cast<uint32_t>(slice.next_block_id.value_or(kNullBlockId));
    digest.Add(uint64_t{next_block} << 32 | static_cast<uint32_t>(slice.num_tokens));
    digest.AddInts(slice.new_block_ids);
  }
  digest.Add(plan.releases.size());
  for (SequenceHandle handle : plan.releases) {
    digest.Add(handle);
  }
  return digest.value();
}

}  // namespace quire
