#include "scheduler/loop/step_timer.h"

#include <algorithm>
#include <bit>

namespace quire {

int StepTimer::BucketOf(int64_t num_tokens) {
  const auto tokens = static_cast<uint64_t>(std::max<int64_t>(num_tokens, 1));
  return std::min(kNumBuckets - 1, static_cast<int>(std::bit_width(tokens)) - 1);
}

void StepTimer::Observe(int64_t num_tokens, int64_t duration_ns) {
  int64_t& average = average_ns_[static_cast<size_t>(BucketOf(num_tokens))];
  average =
      average == 0 ? std::max<int64_t>(duration_ns, 1) : average + (duration_ns - average) / 8;
}

int64_t StepTimer::TimeoutFor(int64_t num_tokens) const {
  const int64_t average = average_ns_[static_cast<size_t>(BucketOf(num_tokens))];
  if (average == 0) {
    return config_.first_timeout_ns;
  }
  return std::max(config_.min_timeout_ns, config_.factor * average);
}

}  // namespace quire
