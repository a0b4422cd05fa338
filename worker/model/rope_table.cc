#include "worker/model/rope_table.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "common/base/status_macros.h"
#include "worker/model/rope_frequencies.h"

namespace quire {
namespace {

constexpr int64_t kMinPositions = 1024;

}  // namespace

RopeTable::RopeTable(const RopeConfig& rope,
                     int32_t head_dim,
                     int32_t max_context_tokens,
                     KernelBackend& backend)
    : inverse_frequencies_(InverseFrequencies(rope, head_dim, max_context_tokens)),
      attention_factor_(rope.attention_factor),
      backend_(backend) {}

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
      const auto cosine = static_cast<float>(std::cos(static_cast<double>(angle)));
      const auto sine = static_cast<float>(std::sin(static_cast<double>(angle)));
      cosines[position * width + i] = cosine * attention_factor_;
      sines[position * width + i] = sine * attention_factor_;
    }
  }
  QUIRE_RETURN_IF_ERROR(cos_.Assign<float>(backend_, cosines));
  QUIRE_RETURN_IF_ERROR(sin_.Assign<float>(backend_, sines));
  num_positions_ = static_cast<int64_t>(grown);
  return absl::OkStatus();
}

}  // namespace quire
