#include "scheduler/sim/candidate_model.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace quire {

std::vector<TokenLogprob> CandidateModel::Draw(int32_t count) {
  // Each stick is one token's part of the probability. After 64 sticks, the rest is
  // (alpha / (alpha + 1)) ^ 64 = 1e-5 on average, which is too little for another likely token.
  constexpr int32_t kNumSticks = 64;
  if (count == 0) {
    return {};  // most requests have no beam search
  }
  parts_.clear();
  double left = 1;
  for (int32_t i = 0; i < kNumSticks; ++i) {
    // Draws `uniform` even if it is not used, so that every Draw takes the same number of random
    // numbers.
    const double uniform = random_.Uniform();
    if (parts_.size() == static_cast<size_t>(count) && left <= parts_.back()) {
      continue;
    }
    // 1 - U^(1 / alpha) has the distribution Beta(1, alpha).
    const double kept = std::pow(1 - uniform, 1 / kAlpha);
    const double part = left * (1 - kept);
    parts_.insert(std::upper_bound(parts_.begin(), parts_.end(), part, std::greater<>()), part);
    parts_.resize(std::min(parts_.size(), static_cast<size_t>(count)));
    left *= kept;
  }
  std::vector<TokenLogprob> candidates;
  for (int32_t i = 0; i < count; ++i) {
    const double part = std::max(parts_[static_cast<size_t>(i)], 1e-30);
    candidates.push_back({.token_id = i, .logprob = static_cast<float>(std::log(part))});
  }
  return candidates;
}

}  // namespace quire
