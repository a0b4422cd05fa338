#include "kernels/cpu/logit_adjustments.h"

#include <algorithm>
#include <limits>

namespace quire {
namespace {

// Bit of counts[token] that marks a token as penalized for repetition. The other bits count the
// token's occurrences in the output.
constexpr uint32_t kRepeated = uint32_t{1} << 31;

void PenaliseRepetition(std::span<const TokenId> tokens,
                        float penalty,
                        std::span<float> logits,
                        std::span<uint32_t> counts) {
  for (const TokenId token : tokens) {
    const auto index = static_cast<size_t>(token);
    if ((counts[index] & kRepeated) == 0) {
      counts[index] |= kRepeated;
      float& logit = logits[index];
      logit = logit > 0.0F ? logit / penalty : logit * penalty;
    }
  }
}

// Lowers the logit of each distinct output token by frequency_penalty times its count, plus
// presence_penalty.
void PenalizeOutput(const SamplingRow& row, std::span<float> logits, std::span<uint32_t> counts) {
  for (const TokenId token : row.output_token_ids) {
    ++counts[static_cast<size_t>(token)];
  }
  for (const TokenId token : row.output_token_ids) {
    uint32_t& count = counts[static_cast<size_t>(token)];
    const uint32_t times = count & ~kRepeated;
    if (times > 0) {
      logits[static_cast<size_t>(token)] -=
          row.params->frequency_penalty * static_cast<float>(times) + row.params->presence_penalty;
      count &= kRepeated;
    }
  }
}

}  // namespace

void AdjustLogits(const SamplingRow& row, std::span<float> logits, std::span<uint32_t> counts) {
  const SamplingParams& params = *row.params;
  for (const auto& [token, bias] : params.logit_bias) {
    logits[static_cast<size_t>(token)] += bias;
  }
  if (row.is_banning()) {
    for (const TokenId token : params.banned_before_min_tokens) {
      logits[static_cast<size_t>(token)] = -std::numeric_limits<float>::infinity();
    }
  }
  if (!params.has_penalties()) {
    return;
  }
  std::fill(counts.begin(), counts.end(), 0U);
  if (params.repetition_penalty != 1.0F) {
    PenaliseRepetition(row.prompt_token_ids, params.repetition_penalty, logits, counts);
    PenaliseRepetition(row.output_token_ids, params.repetition_penalty, logits, counts);
  }
  PenalizeOutput(row, logits, counts);
}

}  // namespace quire
