#include "worker/model/tensor_source.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "common/base/splitmix64.h"
#include "common/model/digest.h"

namespace quire {
namespace {

constexpr size_t kTableSize = 4096;

// The nearest representable number, rounding toward zero: exact roundness does not matter for
// numbers that mean nothing. REQUIRES: normal in both types, as small uniform numbers of a table
// are.
uint16_t Narrow(float value, DType dtype) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (dtype == DType::kBF16) {
    return static_cast<uint16_t>(bits >> 16);
  }
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  constexpr uint32_t kSmallestNormal = (127 - 14) << 23;
  return static_cast<uint16_t>(
      magnitude < kSmallestNormal ? sign : sign | ((magnitude >> 13) - ((127 - 15) << 10)));
}

void FillConstant(float value, DType dtype, std::span<std::byte> out) {
  const uint16_t bits = Narrow(value, dtype);
  for (size_t at = 0; at < out.size(); at += sizeof(bits)) {
    std::memcpy(out.data() + at, &bits, sizeof(bits));
  }
}

}  // namespace

int64_t FileTensors::num_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, weight] : files_.tensors()) {
    bytes += weight.tensor->bytes;
  }
  return bytes;
}

DType FileTensors::dtype(const std::string& name) const { return *files_.Find(name).tensor->dtype; }

absl::Status FileTensors::Read(const TensorShape& tensor,
                               int64_t begin,
                               std::span<std::byte> out) const {
  const WeightRef weight = files_.Find(tensor.name);
  return weight.file->Read(*weight.tensor, begin, out);
}

absl::Status DummyTensors::Read(const TensorShape& tensor,
                                int64_t begin,
                                std::span<std::byte> out) const {
  if (tensor.rows == 0) {
    FillConstant(tensor.name.ends_with(".bias") ? 0.0F : 1.0F, dtype_, out);
    return absl::OkStatus();
  }
  Digest digest;
  digest.AddInt(static_cast<int64_t>(seed_));
  digest.AddBytes(tensor.name);
  digest.AddInt(begin);
  uint64_t state = digest.value();
  const double half_width = std::sqrt(3.0 / static_cast<double>(tensor.cols));
  // Drawing from a table of such numbers is some times as fast as drawing each: billions are drawn.
  std::array<uint16_t, kTableSize> table = {};
  for (uint16_t& entry : table) {
    const double uniform = static_cast<double>(SplitMix64(state) >> 11) * 0x1p-52 - 1.0;
    entry = Narrow(static_cast<float>(half_width * uniform), dtype_);
  }
  constexpr int kDrawsPerWord = 5;
  constexpr int kBitsPerDraw = 12;
  for (size_t at = 0; at < out.size();) {
    uint64_t word = SplitMix64(state);
    for (int draw = 0; draw < kDrawsPerWord && at < out.size(); ++draw, at += sizeof(uint16_t)) {
      std::memcpy(out.data() + at, &table[word % kTableSize], sizeof(uint16_t));
      word >>= kBitsPerDraw;
    }
  }
  return absl::OkStatus();
}

}  // namespace quire
