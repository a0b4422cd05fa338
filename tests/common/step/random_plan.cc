#include "tests/common/step/random_plan.h"

#include <utility>
#include <vector>

#include "tests/support/with_digest.h"

namespace quire {
namespace {

int32_t AnyInt(Random& random) { return static_cast<int32_t>(random.Next()); }

float AnyFloat(Random& random) { return static_cast<float>(random.Between(-1000, 1000)) / 8.0F; }

template <typename T>
std::vector<T> AnyInts(Random& random, int32_t max_size) {
  std::vector<T> values(static_cast<size_t>(random.Between(0, max_size)));
  for (T& value : values) {
    value = static_cast<T>(random.Next());
  }
  return values;
}

SamplingParams AnySampling(Random& random) {
  SamplingParams params;
  params.temperature = AnyFloat(random);
  params.top_k = AnyInt(random);
  params.top_p = AnyFloat(random);
  params.min_p = AnyFloat(random);
  params.repetition_penalty = AnyFloat(random);
  params.presence_penalty = AnyFloat(random);
  params.frequency_penalty = AnyFloat(random);
  for (TokenId token : AnyInts<TokenId>(random, 3)) {
    params.logit_bias.emplace_back(token, AnyFloat(random));
  }
  params.num_logprobs = random.Between(-1, 20);
  params.num_prompt_logprobs = random.Between(-1, 20);
  params.min_tokens = AnyInt(random);
  params.banned_before_min_tokens = AnyInts<TokenId>(random, 3);
  params.seed = random.Next();
  return params;
}

StepHeader AnyHeader(Random& random) {
  return {.scheduler_incarnation = random.Next(),
          .group_epoch = random.Next(),
          .step_id = random.Next()};
}

}  // namespace

StepPlan RandomPlan(Random& random) {
  StepPlan plan;
  plan.header = AnyHeader(random);
  for (int32_t i = random.Below(4); i > 0; --i) {
    plan.swap_outs.push_back({.block = AnyInt(random), .host_block = AnyInt(random)});
  }
  for (int32_t i = random.Below(4); i > 0; --i) {
    plan.swap_ins.push_back(
        {.block = AnyInt(random), .host_block = AnyInt(random), .generation = random.Next()});
  }
  for (int32_t i = random.Below(4); i > 0; --i) {
    plan.copies.push_back({.src = AnyInt(random), .dst = AnyInt(random)});
  }
  for (int32_t i = random.Below(4); i > 0; --i) {
    plan.introductions.push_back({.handle = static_cast<SequenceHandle>(random.Next()),
                                  .token_ids = AnyInts<TokenId>(random, 40),
                                  .num_prompt_tokens = AnyInt(random),
                                  .num_computed_tokens = AnyInt(random),
                                  .block_ids = AnyInts<BlockId>(random, 10),
                                  .sequence_index = AnyInt(random),
                                  .sampling = AnySampling(random)});
  }
  for (int32_t i = random.Below(8); i > 0; --i) {
    plan.slices.push_back({.handle = static_cast<SequenceHandle>(random.Next()),
                           .num_tokens = AnyInt(random),
                           .new_block_ids = AnyInts<BlockId>(random, 5)});
    if (random.OneIn(2)) {
      plan.slices.back().forced_token_id = AnyInt(random);
    }
    if (random.OneIn(2)) {
      plan.slices.back().next_block_id = AnyInt(random);
    }
  }
  plan.releases = AnyInts<SequenceHandle>(random, 4);
  if (random.OneIn(2)) {
    plan.spare = {.handle = static_cast<SequenceHandle>(random.Next()),
                  .block_ids = {AnyInt(random), AnyInt(random)}};
  }
  return WithDigest(std::move(plan));
}

StepResult RandomResult(Random& random) {
  StepResult result;
  result.header = AnyHeader(random);
  result.plan_digest = random.Next();
  result.row_hash = random.Next();
  for (int32_t i = random.Below(6); i > 0; --i) {
    SampledToken sampled{.handle = static_cast<SequenceHandle>(random.Next()),
                         .token_id = AnyInt(random),
                         .logprob = AnyFloat(random),
                         .finite = random.OneIn(2),
                         .top_logprobs = {}};
    for (int32_t k = random.Below(4); k > 0; --k) {
      sampled.top_logprobs.push_back({.token_id = AnyInt(random), .logprob = AnyFloat(random)});
    }
    result.sampled.push_back(sampled);
  }
  for (int32_t i = random.Below(3); i > 0; --i) {
    ScoredSlice scored = {.handle = static_cast<SequenceHandle>(random.Next()),
                          .prompt = {.first_position = AnyInt(random), .num_top = random.Below(4)}};
    for (int32_t k = random.Below(5); k > 0; --k) {
      scored.prompt.logprobs.push_back(AnyFloat(random));
    }
    for (int32_t k = scored.prompt.num_tokens() * scored.prompt.num_top; k > 0; --k) {
      scored.prompt.top.push_back({.token_id = AnyInt(random), .logprob = AnyFloat(random)});
    }
    result.scored.push_back(std::move(scored));
  }
  result.failed_swap_ins = AnyInts<BlockId>(random, 3);
  result.swaps_done_step_id = random.Next();
  result.timings = {.build_us = AnyInt(random),
                    .forward_us = 7,
                    .sample_us = AnyInt(random),
                    .collective_us = AnyInt(random)};
  return result;
}

}  // namespace quire
