#include "worker/model/rope_table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "common/base/status_macros.h"

namespace quire {
namespace {

constexpr int64_t kMinPositions = 1024;

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

}  // namespace

std::vector<float> InverseFrequencies(const RopeConfig& rope, int32_t head_dim) {
  std::vector<float> frequencies(static_cast<size_t>(head_dim / 2));
  const double theta = static_cast<float>(rope.theta);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    // Computes the power in double and rounds once to fp32, since powf may be off by one ulp.
    const double power = std::pow(theta, static_cast<double>(exponent));
    float frequency = 1.0F / static_cast<float>(power);
    if (rope.scaling == RopeScalingKind::kLinear) {
      frequency /= static_cast<float>(rope.factor);
    } else if (rope.scaling == RopeScalingKind::kLlama3) {
      frequency = ScaleLlama3(rope, frequency);
    }
    frequencies[i] = frequency;
  }
  return frequencies;
}

RopeTable::RopeTable(const RopeConfig& rope, int32_t head_dim, KernelBackend& backend)
    : inverse_frequencies_(InverseFrequencies(rope, head_dim)), backend_(backend) {}

absl::Status RopeTable::Reserve(int64_t num_positions) {
  if (num_positions <= num_positions_) {
    return absl::OkStatus();
  }
  const auto wanted = static_cast<uint64_t>(std::max(num_positions, kMinPositions));
  const auto grown = static_cast<size_t>(std::bit_ceil(wanted));
  const size_t width = inverse_frequencies_.size();
  std::vector<float> cosines(grown * width);
  std::vector<float> sines(grown * width);
  for (size_t position = 0; position < grown; ++position) {
    for (size_t i = 0; i < width; ++i) {
      const float angle = static_cast<float>(position) * inverse_frequencies_[i];
      cosines[position * width + i] = static_cast<float>(std::cos(static_cast<double>(angle)));
      sines[position * width + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
  QUIRE_RETURN_IF_ERROR(cos_.Assign<float>(backend_, cosines));
  QUIRE_RETURN_IF_ERROR(sin_.Assign<float>(backend_, sines));
  num_positions_ = static_cast<int64_t>(grown);
  return absl::OkStatus();
}

}  // namespace quire
