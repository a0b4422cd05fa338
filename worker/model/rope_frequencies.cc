#include "worker/model/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>

#include "common/model/rope_config.h"

namespace quire {
namespace {

// Returns the frequency divided by `factor` if its wavelength is long, unchanged if the wavelength
// is short, and interpolated in between.
float ScaleLlama3(const RopeConfig& rope, float frequency) {
  const auto context = static_cast<float>(rope.original_max_position_embeddings);
  const auto factor = static_cast<float>(rope.factor);
  const auto low = static_cast<float>(rope.low_freq_factor);
  const float wavelength = static_cast<float>(2.0 * std::numbers::pi) / frequency;
  const auto longest_kept =
      static_cast<float>(rope.original_max_position_embeddings / rope.high_freq_factor);
  const auto shortest_stretched =
      static_cast<float>(rope.original_max_position_embeddings / rope.low_freq_factor);
  if (wavelength < longest_kept) {
    return frequency;
  }
  if (wavelength > shortest_stretched) {
    return frequency / factor;
  }
  const float smooth = (context / wavelength - low) /
                       static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  return (1.0F - smooth) * frequency / factor + smooth * frequency;
}

// YarnRamp interpolates between keeping a frequency (0) and dividing it by the factor (1).
class YarnRamp {
 public:
  YarnRamp(const RopeConfig& rope, int32_t head_dim) {
    // Returns the index i, not rounded, of the frequency that makes `turns` full turns over
    // original_max_position_embeddings positions.
    const auto dimension_of = [&](double turns) {
      const double length = rope.original_max_position_embeddings;
      return head_dim * std::log(length / (turns * 2.0 * std::numbers::pi)) /
             (2.0 * std::log(rope.theta));
    };
    double begin = dimension_of(rope.beta_fast);
    double end = dimension_of(rope.beta_slow);
    if (rope.truncate) {
      begin = std::floor(begin);
      end = std::ceil(end);
    }
    begin = std::max(begin, 0.0);
    end = std::min(end, head_dim - 1.0);
    begin_ = static_cast<float>(begin);
    width_ = static_cast<float>(begin == end ? 0.001 : end - begin);
  }

  float At(size_t i) const {
    return std::clamp((static_cast<float>(i) - begin_) / width_, 0.0F, 1.0F);
  }

 private:
  float begin_ = 0.0F;
  float width_ = 1.0F;
};

// Returns the theta of dynamic NTK scaling for contexts of max_context_tokens.
double DynamicTheta(const RopeConfig& rope, int32_t head_dim, int32_t max_context_tokens) {
  const double original = rope.original_max_position_embeddings;
  const double length = RopeLength(rope, max_context_tokens);
  const double stretch = rope.factor * length / original - (rope.factor - 1.0);
  return rope.theta * std::pow(stretch, head_dim / (head_dim - 2.0));
}

// Returns theta^(2 i / head_dim) for each frequency i, rounded to fp32. The inverses are the
// unscaled frequencies.
std::vector<float> Powers(double theta, int32_t head_dim) {
  std::vector<float> powers(static_cast<size_t>(head_dim / 2));
  const double base = static_cast<float>(theta);
  for (size_t i = 0; i < powers.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    // Computes the power in double and rounds once to fp32, since powf may be off by one ulp.
    powers[i] = static_cast<float>(std::pow(base, static_cast<double>(exponent)));
  }
  return powers;
}

}  // namespace

std::vector<float> InverseFrequencies(const RopeConfig& rope,
                                      int32_t head_dim,
                                      int32_t max_context_tokens) {
  const bool is_dynamic = rope.scaling == RopeScalingKind::kDynamic;
  const std::vector<float> powers =
      Powers(is_dynamic ? DynamicTheta(rope, head_dim, max_context_tokens) : rope.theta, head_dim);
  const bool is_long = rope.scaling == RopeScalingKind::kLongRope &&
                       max_context_tokens > rope.original_max_position_embeddings;
  const std::vector<float>& factors = is_long ? rope.long_factors : rope.factors;
  const auto factor = static_cast<float>(rope.factor);
  const auto num_rotated = static_cast<size_t>(rope.rotated_share * head_dim / 2.0);
  const YarnRamp ramp(rope, head_dim);
  std::vector<float> frequencies(powers.size());
  for (size_t i = 0; i < powers.size(); ++i) {
    const float plain = 1.0F / powers[i];
    switch (rope.scaling) {
      case RopeScalingKind::kNone:
      case RopeScalingKind::kDynamic:
        frequencies[i] = plain;
        break;
      case RopeScalingKind::kLinear:
        frequencies[i] = plain / factor;
        break;
      case RopeScalingKind::kLlama3:
        frequencies[i] = ScaleLlama3(rope, plain);
        break;
      case RopeScalingKind::kYarn: {
        const float kept = 1.0F - ramp.At(i);
        frequencies[i] = 1.0F / (factor * powers[i]) * (1.0F - kept) + plain * kept;
        break;
      }
      case RopeScalingKind::kLongRope:
      case RopeScalingKind::kFactors:
        frequencies[i] = 1.0F / (factors[i] * powers[i]);
        break;
      case RopeScalingKind::kProportional:
        frequencies[i] = i < num_rotated ? plain / factor : 0.0F;
        break;
    }
  }
  return frequencies;
}

}  // namespace quire
