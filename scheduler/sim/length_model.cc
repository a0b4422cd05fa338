#include "scheduler/sim/length_model.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "common/base/check.h"

namespace quire {
namespace {

double NormalCdf(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

// Returns the probability of each whole length from min to max, indexed by length. The
// probabilities add up to 1.
std::vector<double> LogNormal(double log_median, double sigma, int32_t min, int32_t max) {
  std::vector<double> density(static_cast<size_t>(max) + 1, 0);
  for (int32_t n = min; n <= max; ++n) {
    const double low = (std::log(n - 0.5) - log_median) / sigma;
    const double high = (std::log(n + 0.5) - log_median) / sigma;
    density[static_cast<size_t>(n)] = NormalCdf(high) - NormalCdf(low);
  }
  const double total = std::accumulate(density.begin(), density.end(), 0.0);
  QUIRE_CHECK(total > 0);
  for (double& p : density) {
    p /= total;
  }
  return density;
}

std::vector<double> RunningSums(const std::vector<double>& density) {
  std::vector<double> sums(density.size());
  std::partial_sum(density.begin(), density.end(), sums.begin());
  return sums;
}

int32_t DrawFrom(const std::vector<double>& sums, SimRandom& random) {
  const double u = random.Uniform() * sums.back();
  return static_cast<int32_t>(std::upper_bound(sums.begin(), sums.end(), u) - sums.begin());
}

double SigmaOf(double variation) { return std::sqrt(std::log1p(variation * variation)); }

}  // namespace

LengthShape ShareGptLike() {
  return {
      .mean_prompt = 161.31, .mean_output = 337.99, .prompt_variation = 2, .output_variation = 1};
}

LengthShape AlpacaLike() {
  return {
      .mean_prompt = 19.31, .mean_output = 58.45, .prompt_variation = 0.5, .output_variation = 1};
}

LengthShape TranslationLike() {
  // In the PagedAttention paper, a prefix has 80 tokens with one example and 341 with five. So an
  // example has (341 - 80) / 4 = 65 tokens. With an English vocabulary, a German sentence takes
  // about 4 tokens where the English one takes 3.
  return {.mean_prompt = 28, .mean_output = 37, .prompt_variation = 0.5, .output_variation = 0.5};
}

LengthShape ArxivOfflineLike() {
  return {.mean_prompt = 87'426,
          .mean_output = 428,
          .prompt_variation = 0.5,
          .output_variation = 1,
          .rules = {.min_prompt = 63'862,
                    .min_output = 17,
                    .max_prompt = 192'786,
                    .max_total = 196'608,
                    .max_output = 5'153}};
}

LengthShape ArxivOnlineLike() {
  return {.mean_prompt = 29'567,
          .mean_output = 363,
          .prompt_variation = 0.5,
          .output_variation = 1,
          .rules = {.min_prompt = 22'912,
                    .min_output = 6,
                    .max_prompt = 45'819,
                    .max_total = 65'536,
                    .max_output = 10'845}};
}

LengthModel::LengthModel(const LengthShape& shape) : rules_(shape.rules) {
  QUIRE_CHECK(rules_.min_prompt >= 1 && rules_.min_prompt <= shape.mean_prompt);
  QUIRE_CHECK(rules_.min_output >= 1 && rules_.min_output <= shape.mean_output);
  const double prompt_sigma = SigmaOf(shape.prompt_variation);
  const double output_sigma = SigmaOf(shape.output_variation);
  double prompt_median = std::log(shape.mean_prompt);
  double output_median = std::log(shape.mean_output);
  // max_total bounds prompt and output together, so each mean also depends on the other length's
  // median. This dependence is weak, so a fixed-point iteration on both medians converges fast.
  for (int round = 0; round < 200; ++round) {
    prompt_ = LogNormal(prompt_median, prompt_sigma, rules_.min_prompt, rules_.max_prompt);
    output_ = LogNormal(output_median,
                        output_sigma,
                        rules_.min_output,
                        std::min(rules_.max_output, rules_.max_total - rules_.min_prompt));
    ComputeMeans();
    const double prompt_error = std::log(shape.mean_prompt / mean_prompt_);
    const double output_error = std::log(shape.mean_output / mean_output_);
    if (std::abs(prompt_error) + std::abs(output_error) < 1e-7) {
      return;
    }
    prompt_median += prompt_error;
    output_median += output_error;
  }
  QUIRE_CHECK(false && "the means are not possible under the rules");
}

void LengthModel::ComputeMeans() {
  prompt_so_far_ = RunningSums(prompt_);
  output_so_far_ = RunningSums(output_);
  std::vector<double> output_moments(output_.size());
  for (size_t n = 0; n < output_.size(); ++n) {
    output_moments[n] = static_cast<double>(n) * output_[n];
  }
  const std::vector<double> moments_so_far = RunningSums(output_moments);
  double weight = 0;
  double prompt_moment = 0;
  double output_moment = 0;
  for (int32_t p = rules_.min_prompt; p <= rules_.max_prompt; ++p) {
    const auto longest = std::min(static_cast<size_t>(rules_.max_total - p), output_.size() - 1);
    const double probability = prompt_[static_cast<size_t>(p)];
    weight += probability * output_so_far_[longest];
    prompt_moment += p * probability * output_so_far_[longest];
    output_moment += probability * moments_so_far[longest];
  }
  mean_prompt_ = prompt_moment / weight;
  mean_output_ = output_moment / weight;
}

Lengths LengthModel::Draw(SimRandom& random) const {
  while (true) {
    const Lengths lengths = {.prompt_tokens = DrawFrom(prompt_so_far_, random),
                             .output_tokens = DrawFrom(output_so_far_, random)};
    if (lengths.prompt_tokens + lengths.output_tokens <= rules_.max_total) {
      return lengths;
    }
  }
}

}  // namespace quire
