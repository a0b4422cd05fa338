#include "common/step/step_plan.h"

#include <bit>
#include <cstring>

namespace quire {
namespace {

// A multiply-and-fold hash (the mixing step of wyhash) over 64-bit words: a few cycles a word, and
// every bit of every word reaches the result. Not for adversaries: both ends are ours.
class Digest {
 public:
  void Add(uint64_t word) {
    __uint128_t product = static_cast<__uint128_t>(state_ ^ word) * kMultiplier;
    state_ = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64) ^ kIncrement;
  }
  void AddInt(int64_t value) { Add(static_cast<uint64_t>(value)); }
  void AddFloat(float value) { Add(std::bit_cast<uint32_t>(value)); }
  void AddInts(const std::vector<int32_t>& values) {
    Add(values.size());
    for (int32_t value : values) {
      AddInt(value);
    }
  }
  uint64_t value() const { return state_; }

 private:
  static constexpr uint64_t kMultiplier = 0x9FB21C651E98DF25ULL;
  static constexpr uint64_t kIncrement = 0xA0761D6478BD642FULL;
  uint64_t state_ = kIncrement;
};

void AddSampling(Digest& digest, const SamplingParams& params) {
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
  digest.AddInt(params.min_tokens);
  digest.AddInts(params.banned_before_min_tokens);
  digest.Add(params.seed);
}

void AddIntroduction(Digest& digest, const SequenceIntroduction& introduction) {
  digest.Add(introduction.handle);
  digest.AddInts(introduction.token_ids);
  digest.AddInt(introduction.num_prompt_tokens);
  digest.AddInt(introduction.num_computed_tokens);
  digest.AddInts(introduction.block_ids);
  digest.AddInt(introduction.sequence_index);
  AddSampling(digest, introduction.sampling);
}

void AddSwaps(Digest& digest, const std::vector<BlockSwap>& swaps) {
  digest.Add(swaps.size());
  for (const BlockSwap& swap : swaps) {
    digest.AddInt(swap.block);
    digest.AddInt(swap.host_block);
  }
}

}  // namespace

uint64_t DigestOf(const StepPlan& plan) {
  Digest digest;
  digest.Add(plan.header.scheduler_incarnation);
  digest.Add(plan.header.group_epoch);
  digest.Add(plan.header.step_id);
  AddSwaps(digest, plan.swap_outs);
  AddSwaps(digest, plan.swap_ins);
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
    digest.Add(slice.handle);
    digest.AddInt(slice.num_tokens);
    digest.AddInts(slice.new_block_ids);
    digest.AddInt(slice.forced_token_id.value_or(-1));
  }
  digest.Add(plan.releases.size());
  for (SequenceHandle handle : plan.releases) {
    digest.Add(handle);
  }
  return digest.value();
}

}  // namespace quire
