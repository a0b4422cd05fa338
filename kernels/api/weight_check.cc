#include "kernels/api/weight_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/check.h"
#include "kernels/api/weight_block.h"
#include "kernels/api/weight_block_layout.h"

namespace quire {
namespace {

// Whether all bits of the exponent are set: the number is infinite or NaN.
template <typename Number, Number exponent_mask>
bool IsNotFinite(const std::byte* at) {
  Number bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  return (bits & exponent_mask) == exponent_mask;
}

bool IsNotFiniteHalf(const std::byte* at) { return IsNotFinite<uint16_t, 0x7C00>(at); }

template <typename Number, Number exponent_mask>
std::optional<int64_t> FirstNotFiniteNumber(std::span<const std::byte> from) {
  constexpr size_t kBytes = sizeof(Number);
  constexpr size_t kPieceBytes = 1024 * kBytes;
  // A loop without branches or bounds checks, which compilers vectorize, decides whether to search
  // a piece.
  for (size_t begin = 0; begin < from.size(); begin += kPieceBytes) {
    const size_t end = std::min(begin + kPieceBytes, from.size());
    int num_found = 0;
    for (size_t i = begin; i < end; i += kBytes) {
      num_found += IsNotFinite<Number, exponent_mask>(from.data() + i) ? 1 : 0;
    }
    for (size_t i = begin; num_found > 0 && i < end; i += kBytes) {
      if (IsNotFinite<Number, exponent_mask>(from.data() + i)) {
        return static_cast<int64_t>(i / kBytes);
      }
    }
  }
  return std::nullopt;
}

bool IsNotFiniteMxfp4(const std::byte* at) {
  constexpr int kNan = 255;
  // The greatest code, 12, times the scale of this exponent is below 2^128.
  constexpr int kGreatestSafe = 252;
  const auto exponent = std::to_integer<int>(*at);
  if (exponent <= kGreatestSafe) {
    return false;
  }
  WeightBlock block;
  UnpackBlock(WeightFormat::kMxfp4, at, block);
  return exponent == kNan ||
         std::any_of(block.codes.begin(), block.codes.begin() + 32, [&](int8_t code) {
           return std::isinf(block.scale * static_cast<float>(code));
         });
}

template <typename IsNotFiniteBlock>
std::optional<int64_t> FirstBlock(WeightFormat format,
                                  std::span<const std::byte> from,
                                  IsNotFiniteBlock is_not_finite) {
  const int64_t block_bytes = InfoOf(format).block_bytes;
  for (int64_t at = 0; at < std::ssize(from); at += block_bytes) {
    if (is_not_finite(from.data() + at)) {
      return at / block_bytes;
    }
  }
  return std::nullopt;
}

template <typename Block>
std::optional<int64_t> FirstOfScale(WeightFormat format, std::span<const std::byte> from) {
  return FirstBlock(format, from, [](const std::byte* at) {
    return IsNotFiniteHalf(at + offsetof(Block, scale));
  });
}

template <typename Block>
std::optional<int64_t> FirstOfScaleOrMinimum(WeightFormat format, std::span<const std::byte> from) {
  return FirstBlock(format, from, [](const std::byte* at) {
    return IsNotFiniteHalf(at + offsetof(Block, scale)) ||
           IsNotFiniteHalf(at + offsetof(Block, minimum));
  });
}

}  // namespace

std::optional<int64_t> FirstNotFiniteBlock(WeightFormat format, std::span<const std::byte> from) {
  QUIRE_CHECK_EQ(std::ssize(from) % InfoOf(format).block_bytes, 0);
  switch (format) {
    case WeightFormat::kF32:
      return FirstNotFiniteNumber<uint32_t, 0x7F80'0000>(from);
    case WeightFormat::kF16:
      return FirstNotFiniteNumber<uint16_t, 0x7C00>(from);
    case WeightFormat::kBF16:
      return FirstNotFiniteNumber<uint16_t, 0x7F80>(from);
    case WeightFormat::kQ4_0:
    case WeightFormat::kIq4Nl:
      return FirstOfScale<Nibbles32Block>(format, from);
    case WeightFormat::kQ4_1:
      return FirstOfScaleOrMinimum<Q41Block>(format, from);
    case WeightFormat::kQ5_0:
      return FirstOfScale<Q50Block>(format, from);
    case WeightFormat::kQ5_1:
      return FirstOfScaleOrMinimum<Q51Block>(format, from);
    case WeightFormat::kQ8_0:
      return FirstOfScale<Q80Block>(format, from);
    case WeightFormat::kQ2K:
      return FirstOfScaleOrMinimum<Q2KBlock>(format, from);
    case WeightFormat::kQ3K:
      return FirstOfScale<Q3KBlock>(format, from);
    case WeightFormat::kQ4K:
      return FirstOfScaleOrMinimum<Q4KBlock>(format, from);
    case WeightFormat::kQ5K:
      return FirstOfScaleOrMinimum<Q5KBlock>(format, from);
    case WeightFormat::kQ6K:
      return FirstOfScale<Q6KBlock>(format, from);
    case WeightFormat::kIq4Xs:
      return FirstOfScale<Iq4XsBlock>(format, from);
    case WeightFormat::kMxfp4:
      return FirstBlock(format, from, IsNotFiniteMxfp4);
  }
  return std::nullopt;
}

}  // namespace quire
