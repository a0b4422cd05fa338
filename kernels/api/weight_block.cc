#include "kernels/api/weight_block.h"

#include <bit>
#include <cstring>

#include "common/base/check.h"
#include "common/model/half_float.h"
#include "kernels/api/weight_block_layout.h"

namespace quire {
namespace {

// The 16 values of the 4-bit float e2m1, doubled to make them integers. Index 8 is -0 in e2m1, and
// 0 in ggml.
constexpr CodeTable kMxfp4Codes = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Returns bits [low, low + n) of the byte.
constexpr uint8_t Bits(uint8_t byte, int low, int n) {
  return static_cast<uint8_t>((byte >> low) & ((1 << n) - 1));
}

void SetScale(uint16_t scale, WeightBlock& block) {
  block.scale = HalfToFloat(scale);
  block.minimum = 0.0F;
  block.group_scales.fill(1);
  block.group_minimums.fill(0);
}

void SetScaleAndAdded(uint16_t scale, uint16_t added, WeightBlock& block) {
  SetScale(scale, block);
  block.minimum = -HalfToFloat(added);
  block.group_minimums.fill(1);
}

// Low nibbles are the codes of the first n / 2 weights, high nibbles those of the others.
template <size_t n>
void UnpackNibbles(const uint8_t* nibbles, int8_t* codes) {
  for (size_t i = 0; i < n / 2; ++i) {
    codes[i] = static_cast<int8_t>(Bits(nibbles[i], 0, 4));
    codes[i + n / 2] = static_cast<int8_t>(Bits(nibbles[i], 4, 4));
  }
}

void UnpackTable32(const uint8_t* nibbles, const CodeTable& table, int8_t* codes) {
  for (size_t i = 0; i < 16; ++i) {
    codes[i] = table[Bits(nibbles[i], 0, 4)];
    codes[i + 16] = table[Bits(nibbles[i], 4, 4)];
  }
}

void AddToCodes(int added, size_t n, WeightBlock& block) {
  for (size_t i = 0; i < n; ++i) {
    block.codes[i] = static_cast<int8_t>(block.codes[i] + added);
  }
}

// Bit i of fifth_bits is bit 4 of code i. Bit 0 is the lowest bit of the first byte.
void AddFifthBits(const Bytes<4>& fifth_bits, WeightBlock& block) {
  for (size_t i = 0; i < 32; ++i) {
    block.codes[i] = static_cast<int8_t>(block.codes[i] + (fifth_bits[i / 8] >> (i % 8) & 1) * 16);
  }
}

// Unpacks 256 codes of 2 bits. Bits 2 s and 2 s + 1 of byte 32 h + i are the code of weight
// 128 h + 32 s + i.
void UnpackPairs(const Bytes<64>& pairs, WeightBlock& block) {
  for (size_t h = 0; h < 2; ++h) {
    for (size_t s = 0; s < 4; ++s) {
      for (size_t i = 0; i < 32; ++i) {
        block.codes[128 * h + 32 * s + i] =
            static_cast<int8_t>(Bits(pairs[32 * h + i], static_cast<int>(2 * s), 2));
      }
    }
  }
}

// Scales and minimums have 6 bits. For groups 0 to 3 they are bits 0 to 5 of bytes g and g + 4. For
// group g + 4, byte g + 8 has the low 4 bits of both, and bits 6 and 7 of bytes g and g + 4 are the
// high 2 bits.
void UnpackSixBitGroups(const Bytes<12>& bits, WeightBlock& block) {
  for (size_t g = 0; g < 4; ++g) {
    block.group_scales[g] = static_cast<int8_t>(Bits(bits[g], 0, 6));
    block.group_minimums[g] = Bits(bits[g + 4], 0, 6);
    block.group_scales[g + 4] =
        static_cast<int8_t>(Bits(bits[g + 8], 0, 4) | Bits(bits[g], 6, 2) << 4);
    block.group_minimums[g + 4] =
        static_cast<uint8_t>(Bits(bits[g + 8], 4, 4) | Bits(bits[g + 4], 6, 2) << 4);
  }
}

void UnpackQ40(const Nibbles32Block& from, WeightBlock& block) {
  SetScale(from.scale, block);
  UnpackNibbles<32>(from.nibbles.data(), block.codes.data());
  AddToCodes(-8, 32, block);
}

void UnpackIq4Nl(const Nibbles32Block& from, WeightBlock& block) {
  SetScale(from.scale, block);
  UnpackTable32(from.nibbles.data(), kIq4Codes, block.codes.data());
}

void UnpackQ41(const Q41Block& from, WeightBlock& block) {
  SetScaleAndAdded(from.scale, from.minimum, block);
  UnpackNibbles<32>(from.nibbles.data(), block.codes.data());
}

void UnpackQ50(const Q50Block& from, WeightBlock& block) {
  SetScale(from.scale, block);
  UnpackNibbles<32>(from.nibbles.data(), block.codes.data());
  AddFifthBits(from.fifth_bits, block);
  AddToCodes(-16, 32, block);
}

void UnpackQ51(const Q51Block& from, WeightBlock& block) {
  SetScaleAndAdded(from.scale, from.minimum, block);
  UnpackNibbles<32>(from.nibbles.data(), block.codes.data());
  AddFifthBits(from.fifth_bits, block);
}

void UnpackQ80(const Q80Block& from, WeightBlock& block) {
  SetScale(from.scale, block);
  std::memcpy(block.codes.data(), from.codes.data(), sizeof(from.codes));
}

void UnpackQ2K(const Q2KBlock& from, WeightBlock& block) {
  block.scale = HalfToFloat(from.scale);
  block.minimum = HalfToFloat(from.minimum);
  for (size_t g = 0; g < 16; ++g) {
    block.group_scales[g] = static_cast<int8_t>(Bits(from.group_nibbles[g], 0, 4));
    block.group_minimums[g] = Bits(from.group_nibbles[g], 4, 4);
  }
  UnpackPairs(from.pairs, block);
}

// Bit b of third_bits[i] belongs to weight 32 b + i. If the bit is 0, subtracts 4 from the code.
void UnpackQ3K(const Q3KBlock& from, WeightBlock& block) {
  SetScale(from.scale, block);
  for (size_t g = 0; g < 16; ++g) {
    const int low = Bits(from.group_bits[g % 8], g < 8 ? 0 : 4, 4);
    const int high = Bits(from.group_bits[8 + g % 4], static_cast<int>(g / 4 * 2), 2);
    block.group_scales[g] = static_cast<int8_t>((low | high << 4) - 32);
  }
  UnpackPairs(from.pairs, block);
  for (size_t b = 0; b < 8; ++b) {
    for (size_t i = 0; i < 32; ++i) {
      int8_t& code = block.codes[32 * b + i];
      code = static_cast<int8_t>(code + Bits(from.third_bits[i], static_cast<int>(b), 1) * 4 - 4);
    }
  }
}

void UnpackQ4K(const Q4KBlock& from, WeightBlock& block) {
  block.scale = HalfToFloat(from.scale);
  block.minimum = HalfToFloat(from.minimum);
  UnpackSixBitGroups(from.group_bits, block);
  for (size_t c = 0; c < 4; ++c) {
    UnpackNibbles<64>(&from.nibbles[32 * c], &block.codes[64 * c]);
  }
}

// Bit g of fifth_bits[i] is bit 4 of code i of group g.
void UnpackQ5K(const Q5KBlock& from, WeightBlock& block) {
  block.scale = HalfToFloat(from.scale);
  block.minimum = HalfToFloat(from.minimum);
  UnpackSixBitGroups(from.group_bits, block);
  for (size_t c = 0; c < 4; ++c) {
    UnpackNibbles<64>(&from.nibbles[32 * c], &block.codes[64 * c]);
  }
  for (size_t g = 0; g < 8; ++g) {
    for (size_t i = 0; i < 32; ++i) {
      int8_t& code = block.codes[32 * g + i];
      code = static_cast<int8_t>(code + Bits(from.fifth_bits[i], static_cast<int>(g), 1) * 16);
    }
  }
}

// Each 64 bytes of `nibbles` have the low 4 bits of 128 codes. `pairs` has the high 2 bits of all
// codes, in the order of UnpackPairs.
void UnpackQ6K(const Q6KBlock& from, WeightBlock& block) {
  SetScale(from.scale, block);
  block.group_scales = from.group_scales;
  UnpackPairs(from.pairs, block);
  std::array<int8_t, 256> low;
  UnpackNibbles<128>(&from.nibbles[0], &low[0]);
  UnpackNibbles<128>(&from.nibbles[64], &low[128]);
  for (size_t i = 0; i < 256; ++i) {
    block.codes[i] = static_cast<int8_t>(block.codes[i] * 16 + low[i] - 32);
  }
}

void UnpackIq4Xs(const Iq4XsBlock& from, WeightBlock& block) {
  SetScale(from.scale, block);
  for (size_t g = 0; g < 8; ++g) {
    const int low = Bits(from.group_nibbles[g / 2], g % 2 == 0 ? 0 : 4, 4);
    const int high = from.group_pairs >> (2 * g) & 3;
    block.group_scales[g] = static_cast<int8_t>((low | high << 4) - 32);
    UnpackTable32(&from.nibbles[16 * g], kIq4Codes, &block.codes[32 * g]);
  }
}

// The scale is 2^(exponent - 128), a subnormal number for the exponents 0 and 1. The exponent 255,
// which is NaN in e8m0, gives 2^127, as in ggml.
void UnpackMxfp4(const Mxfp4Block& from, WeightBlock& block) {
  SetScale(0, block);
  const uint32_t exponent = from.exponent;
  block.scale = std::bit_cast<float>(exponent < 2 ? 0x20'0000U << exponent : (exponent - 1) << 23);
  UnpackTable32(from.nibbles.data(), kMxfp4Codes, block.codes.data());
}

template <typename Block>
void UnpackAs(void (*unpack)(const Block&, WeightBlock&),
              const std::byte* from,
              WeightBlock& block) {
  Block aligned;
  std::memcpy(&aligned, from, sizeof(aligned));
  unpack(aligned, block);
}

}  // namespace

void UnpackBlock(WeightFormat format, const std::byte* from, WeightBlock& block) {
  switch (format) {
    case WeightFormat::kQ4_0:
      return UnpackAs(UnpackQ40, from, block);
    case WeightFormat::kQ4_1:
      return UnpackAs(UnpackQ41, from, block);
    case WeightFormat::kQ5_0:
      return UnpackAs(UnpackQ50, from, block);
    case WeightFormat::kQ5_1:
      return UnpackAs(UnpackQ51, from, block);
    case WeightFormat::kQ8_0:
      return UnpackAs(UnpackQ80, from, block);
    case WeightFormat::kQ2K:
      return UnpackAs(UnpackQ2K, from, block);
    case WeightFormat::kQ3K:
      return UnpackAs(UnpackQ3K, from, block);
    case WeightFormat::kQ4K:
      return UnpackAs(UnpackQ4K, from, block);
    case WeightFormat::kQ5K:
      return UnpackAs(UnpackQ5K, from, block);
    case WeightFormat::kQ6K:
      return UnpackAs(UnpackQ6K, from, block);
    case WeightFormat::kIq4Nl:
      return UnpackAs(UnpackIq4Nl, from, block);
    case WeightFormat::kIq4Xs:
      return UnpackAs(UnpackIq4Xs, from, block);
    case WeightFormat::kMxfp4:
      return UnpackAs(UnpackMxfp4, from, block);
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      break;
  }
  QUIRE_CHECK(IsQuantized(format));
}

}  // namespace quire
