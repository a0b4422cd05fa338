#include "deploy/cli/top_history.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

namespace quire {
namespace {

constexpr double kMicrosPerSecond = 1e6;

double SecondsOfMicros(int64_t micros) { return static_cast<double>(micros) / kMicrosPerSecond; }

TopCounts CountsOf(const v1::GetStateResponse& state) {
  const v1::GetLoadResponse& load = state.load();
  const v1::StepTimes& steps = state.steps();
  return {.seconds = SecondsOfMicros(state.time_us()),
          .prompt_tokens = static_cast<double>(state.num_prompt_tokens()),
          .generated_tokens = static_cast<double>(state.num_generated_tokens()),
          .queried_tokens = static_cast<double>(load.num_prefix_queried_tokens()),
          .hit_tokens = static_cast<double>(load.num_prefix_hit_tokens()),
          .steps = static_cast<double>(steps.num_steps()),
          .plan = SecondsOfMicros(steps.plan_us()),
          .send = SecondsOfMicros(steps.send_us()),
          .wait = SecondsOfMicros(steps.wait_us()),
          .apply = SecondsOfMicros(steps.apply_us()),
          .worker_build = SecondsOfMicros(steps.worker_build_us()),
          .worker_forward = SecondsOfMicros(steps.worker_forward_us()),
          .worker_sample = SecondsOfMicros(steps.worker_sample_us())};
}

TopCounts Difference(const TopCounts& before, const TopCounts& after) {
  TopCounts result;
  for (const auto count : {&TopCounts::seconds,
                           &TopCounts::prompt_tokens,
                           &TopCounts::generated_tokens,
                           &TopCounts::queried_tokens,
                           &TopCounts::hit_tokens,
                           &TopCounts::steps,
                           &TopCounts::plan,
                           &TopCounts::send,
                           &TopCounts::wait,
                           &TopCounts::apply,
                           &TopCounts::worker_build,
                           &TopCounts::worker_forward,
                           &TopCounts::worker_sample}) {
    result.*count = std::max(0.0, after.*count - before.*count);
  }
  return result;
}

}  // namespace

double ShareOf(double part, double whole) {
  const double share = whole > 0 ? part / whole : 0.0;
  return std::isfinite(share) ? std::max(0.0, share) : 0.0;
}

void TopHistory::Add(v1::GetStateResponse state) {
  const TopCounts counts = CountsOf(state);
  latest_ = std::move(state);
  if (!samples_.empty()) {
    const TopCounts& last = samples_.back();
    if (counts.seconds < last.seconds || counts.generated_tokens < last.generated_tokens ||
        counts.prompt_tokens < last.prompt_tokens) {
      samples_.clear();
    } else if (counts.seconds == last.seconds) {
      // The server has not updated its state since the last answer.
      return;
    }
  }
  samples_.push_back(counts);
  if (samples_.size() > kMaxSamples) {
    samples_.pop_front();
  }
}

TopCounts TopHistory::Since(double seconds) const {
  if (samples_.size() < 2) {
    return {};
  }
  const TopCounts& last = samples_.back();
  auto first = samples_.end() - 2;
  while (first != samples_.begin() && last.seconds - first->seconds < seconds) {
    --first;
  }
  return Difference(*first, last);
}

std::vector<double> TopHistory::Rates(double TopCounts::*count, size_t max_rates) const {
  std::vector<double> rates;
  const size_t num_rates = std::min(max_rates, samples_.size() - (samples_.empty() ? 0 : 1));
  for (size_t i = samples_.size() - num_rates; i < samples_.size(); ++i) {
    const TopCounts between = Difference(samples_[i - 1], samples_[i]);
    rates.push_back(ShareOf(between.*count, between.seconds));
  }
  return rates;
}

}  // namespace quire
