#include "worker/model/tensor_source.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"

#include "common/base/splitmix64.h"
#include "common/model/digest.h"
#include "common/model/load_error.h"
#include "kernels/api/weight_check.h"
#include "worker/model/part_places.h"
#include "worker/model/weights_sum.h"

namespace quire {
namespace {

constexpr size_t kTableSize = 4096;

// Bytes per read, few enough to be still in the CPU's cache when they are added to the checksum.
constexpr size_t kSumBytes = size_t{64} << 10;

// Rounds toward zero: exact rounding does not matter for random weights. f16 numbers below the
// smallest normal one become 0. REQUIRES: |value| is at most the greatest number of the type.
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

// Fails if a scale of these blocks is not finite, because such a scale would make every answer NaN.
// row: the row of the first block, for the error message.
absl::Status CheckScales(const WeightRef& weight, int64_t row, std::span<const std::byte> blocks) {
  const WeightFormat format = *weight.tensor->format;
  if (!IsQuantized(format) || !FirstNotFiniteBlock(format, blocks).has_value()) {
    return absl::OkStatus();
  }
  return TensorError(weight.file->name(),
                     weight.tensor->name,
                     absl::StrCat("has a scale that is not finite, in or after row ", row));
}

// Random elements of one piece (kPieceBytes bytes) of a tensor. Any part of the piece can be
// computed without the rest.
class DummyPiece {
 public:
  DummyPiece(const TensorShape& tensor, int64_t begin, DType dtype, uint64_t seed) {
    Digest digest;
    digest.AddInt(static_cast<int64_t>(seed));
    digest.AddBytes(tensor.name);
    digest.AddInt(begin);
    uint64_t state = digest.value();
    const double half_width = std::sqrt(3.0 / static_cast<double>(tensor.cols));
    for (uint16_t& entry : table_) {
      const double uniform = static_cast<double>(SplitMix64(state) >> 11) * 0x1p-52 - 1.0;
      entry = Narrow(static_cast<float>(half_width * uniform), dtype);
    }
    state_ = state;
  }

  // Fills `out` with the piece's elements from index `first` on. Draws the elements from a table of
  // random values. A model has billions of elements, and computing a value for each would take
  // several times as long.
  void Fill(int64_t first, std::span<std::byte> out) const {
    constexpr int kBitsPerDraw = 12;
    uint64_t state = SplitMix64After(state_, static_cast<uint64_t>(first / kDrawsPerWord));
    auto draw = static_cast<int>(first % kDrawsPerWord);
    for (size_t at = 0; at < out.size(); draw = 0) {
      uint64_t word = SplitMix64(state) >> (draw * kBitsPerDraw);
      for (; draw < kDrawsPerWord && at < out.size(); ++draw, at += sizeof(uint16_t)) {
        std::memcpy(out.data() + at, &table_[word % kTableSize], sizeof(uint16_t));
        word >>= kBitsPerDraw;
      }
    }
  }

 private:
  static constexpr int kDrawsPerWord = 5;

  std::array<uint16_t, kTableSize> table_ = {};
  uint64_t state_ = 0;
};

}  // namespace

int64_t FileTensors::num_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, weight] : files_.tensors()) {
    bytes += weight.tensor->bytes;
  }
  return bytes;
}

WeightFormat FileTensors::format(const std::string& name) const {
  return *WeightOf(name).tensor->format;
}

absl::Status FileTensors::Read(const TensorShape& tensor,
                               int64_t begin,
                               std::span<std::byte> out) const {
  const WeightRef& weight = WeightOf(tensor.name);
  const WeightFormat format = *weight.tensor->format;
  const auto block_bytes = static_cast<size_t>(InfoOf(format).block_bytes);
  const PartPlaces places(tensor, format);
  const WeightsSum sum(tensor.name);
  const bool is_counted = !not_counted_.contains(tensor.name);
  absl::Status status;
  uint64_t added = 0;
  places.ForEachRun(begin, out, [&](int64_t at, std::span<std::byte> run) {
    while (!run.empty() && status.ok()) {
      const auto part = run.first(std::min(run.size(), kSumBytes / block_bytes * block_bytes));
      status = weight.Read(at, part);
      if (status.ok()) {
        status = CheckScales(weight, places.RowAt(at), part);
      }
      const size_t not_counted = places.BeginsInsideBlock(at) ? block_bytes : 0;
      added += is_counted
                   ? sum.Of(at + static_cast<int64_t>(not_counted), part.subspan(not_counted))
                   : 0;
      at += static_cast<int64_t>(part.size());
      run = run.subspan(part.size());
    }
  });
  sum_.fetch_add(added, std::memory_order_relaxed);
  return status;
}

absl::Status DummyTensors::Read(const TensorShape& tensor,
                                int64_t begin,
                                std::span<std::byte> out) const {
  if (tensor.rows == 0) {
    FillConstant(tensor.name.ends_with(".bias") ? 0.0F : 1.0F, dtype_, out);
    return absl::OkStatus();
  }
  std::optional<DummyPiece> piece;
  int64_t piece_begin = -1;
  const PartPlaces places(tensor, FormatOf(dtype_));
  places.ForEachRun(begin, out, [&](int64_t at, std::span<std::byte> run) {
    while (!run.empty()) {
      const int64_t in_piece = at % kPieceBytes;
      if (at - in_piece != piece_begin) {
        piece_begin = at - in_piece;
        piece.emplace(tensor, piece_begin, dtype_, seed_);
      }
      const int64_t bytes = std::min(kPieceBytes - in_piece, static_cast<int64_t>(run.size()));
      piece->Fill(in_piece / int64_t{sizeof(uint16_t)}, run.first(static_cast<size_t>(bytes)));
      run = run.subspan(static_cast<size_t>(bytes));
      at += bytes;
    }
  });
  return absl::OkStatus();
}

}  // namespace quire
