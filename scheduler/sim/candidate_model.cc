#include "scheduler/sim/candidate_model.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace quire {

std::vector<TokenLogprob> CandidateModel::Draw(int32_t count) {
  // What is left after so many sticks is no longer among the likeliest: (alpha / (alpha + 1)) ^ 64.
  constexpr int32_t kNumSticks = 64;
  if (count == 0) {
    return {};  // most requests search for no beams
  }
  parts_.clear();
  double left = 1;
  for (int32_t i = 0; i < kNumSticks; ++i) {
    // 1 - U^(1 / alpha) is Beta(1, alpha).
    const double kept = std::pow(1 - random_.Uniform(), 1 / kAlpha);
    parts_.push_back(left * (1 - kept));
    left *= kept;
  }
  std::sort(parts_.begin(), parts_.end(), std::greater<>());
  std::vector<TokenLogprob> candidates;
  for (int32_t i = 0; i < count; ++i) {
    const double part = std::max(parts_[static_cast<size_t>(i)], 1e-30);
    candidates.push_back({.token_id = i, .logprob = static_cast<float>(std::log(part))});
  }
  return candidates;
}

}  // namespace quire
