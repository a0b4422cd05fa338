// StepResult is a rank's answer to a StepPlan; merge_results.h merges the results of all ranks.
//
// Thread safety: value types.
#ifndef QUIRE_COMMON_STEP_STEP_RESULT_H_
#define QUIRE_COMMON_STEP_STEP_RESULT_H_

#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "common/step/prompt_logprobs.h"
#include "common/step/step_plan.h"

namespace quire {

// The token sampled for a slice that reached its sequence's last known token.
struct SampledToken {
  SequenceHandle handle = 0;
  TokenId token_id = 0;
  float logprob = 0.0F;
  bool finite = true;                      // false: the row of logits held a NaN or an infinity
  std::vector<TokenLogprob> top_logprobs;  // num_logprobs entries, likeliest first

  friend bool operator==(const SampledToken&, const SampledToken&) = default;
};

// Log-probabilities of prompt tokens, computed by one slice.
struct ScoredSlice {
  SequenceHandle handle = 0;
  PromptLogprobs prompt;

  friend bool operator==(const ScoredSlice&, const ScoredSlice&) = default;
};

struct StepTimings {
  int64_t build_us = 0;    // checking the plan and building the batch
  int64_t forward_us = 0;  // forward pass of the model
  int64_t sample_us = 0;   // sampling tokens from the logits
  // Part of the times above that was spent in collectives, including the wait for other ranks. 0
  // with one rank.
  int64_t collective_us = 0;

  friend bool operator==(const StepTimings&, const StepTimings&) = default;
};

struct StepResult {
  StepHeader header;
  uint64_t plan_digest = 0;
  std::vector<SampledToken> sampled;  // in the order of the slices
  // One entry for each slice that computes a prompt token before the prompt's last one, if the
  // slice's sequence has num_prompt_logprobs >= 0. In the order of the slices; on rank 0 only.
  std::vector<ScoredSlice> scored;
  // Blocks that swap-ins of the plan left unchanged, because the host blocks had other generations.
  // In plan order. Results computed from these blocks are invalid.
  std::vector<BlockId> failed_swap_ins;
  // All swaps of the step with this id and of earlier steps are done. A step without slices waits
  // for all swaps.
  uint64_t swaps_done_step_id = 0;
  // Hash of the activations after the last layer, over all rows (tokens) that the step computed. 0:
  // not compared, for example because this rank's bits may differ from other ranks' bits.
  uint64_t row_hash = 0;
  StepTimings timings;

  friend bool operator==(const StepResult&, const StepResult&) = default;
};

}  // namespace quire

#endif  // QUIRE_COMMON_STEP_STEP_RESULT_H_
