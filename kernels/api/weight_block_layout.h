// The bytes of a weight block of each quantized format, as in a GGUF file. Numbers of several bytes
// are little-endian; `scale` and `minimum` are the bits of binary16. weight_block.cc says which
// weight each bit belongs to.
//
// Thread safety: value types.
// Source:        ggml's block structures (ggml-common.h).
#ifndef QUIRE_KERNELS_API_WEIGHT_BLOCK_LAYOUT_H_
#define QUIRE_KERNELS_API_WEIGHT_BLOCK_LAYOUT_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/api/weight_format.h"

namespace quire {

static_assert(std::endian::native == std::endian::little);

template <size_t n>
using Bytes = std::array<uint8_t, n>;

// Q4_0 and IQ4_NL.
struct Nibbles32Block {
  uint16_t scale;
  Bytes<16> nibbles;
};

struct Q41Block {
  uint16_t scale;
  uint16_t minimum;
  Bytes<16> nibbles;
};

struct Q50Block {
  uint16_t scale;
  Bytes<4> fifth_bits;
  Bytes<16> nibbles;
};

struct Q51Block {
  uint16_t scale;
  uint16_t minimum;
  Bytes<4> fifth_bits;
  Bytes<16> nibbles;
};

struct Q80Block {
  uint16_t scale;
  std::array<int8_t, 32> codes;
};

struct Q2KBlock {
  Bytes<16> group_nibbles;  // low: scale of a group, high: its minimum
  Bytes<64> pairs;          // of bits
  uint16_t scale;
  uint16_t minimum;
};

struct Q3KBlock {
  Bytes<32> third_bits;
  Bytes<64> pairs;       // of bits
  Bytes<12> group_bits;  // scales of 6 bits: 8 bytes of low nibbles, 4 bytes of high pairs
  uint16_t scale;
};

struct Q4KBlock {
  uint16_t scale;
  uint16_t minimum;
  Bytes<12> group_bits;  // scales and minimums of 6 bits
  Bytes<128> nibbles;
};

struct Q5KBlock {
  uint16_t scale;
  uint16_t minimum;
  Bytes<12> group_bits;  // as in Q4KBlock
  Bytes<32> fifth_bits;
  Bytes<128> nibbles;
};

struct Q6KBlock {
  Bytes<128> nibbles;
  Bytes<64> pairs;  // bits 5 and 6 of the codes
  std::array<int8_t, 16> group_scales;
  uint16_t scale;
};

struct Iq4XsBlock {
  uint16_t scale;
  uint16_t group_pairs;    // bits 5 and 6 of the groups' scales
  Bytes<4> group_nibbles;  // bits 1 to 4
  Bytes<128> nibbles;
};

struct Mxfp4Block {
  uint8_t exponent;  // e8m0: the scale is 2^(exponent - 127), 255 is NaN
  Bytes<16> nibbles;
};

template <typename Block>
constexpr bool HasBytesOf(WeightFormat format) {
  return sizeof(Block) == static_cast<size_t>(InfoOf(format).block_bytes);
}

static_assert(HasBytesOf<Nibbles32Block>(WeightFormat::kQ4_0));
static_assert(HasBytesOf<Nibbles32Block>(WeightFormat::kIq4Nl));
static_assert(HasBytesOf<Q41Block>(WeightFormat::kQ4_1));
static_assert(HasBytesOf<Q50Block>(WeightFormat::kQ5_0));
static_assert(HasBytesOf<Q51Block>(WeightFormat::kQ5_1));
static_assert(HasBytesOf<Q80Block>(WeightFormat::kQ8_0));
static_assert(HasBytesOf<Q2KBlock>(WeightFormat::kQ2K));
static_assert(HasBytesOf<Q3KBlock>(WeightFormat::kQ3K));
static_assert(HasBytesOf<Q4KBlock>(WeightFormat::kQ4K));
static_assert(HasBytesOf<Q5KBlock>(WeightFormat::kQ5K));
static_assert(HasBytesOf<Q6KBlock>(WeightFormat::kQ6K));
static_assert(HasBytesOf<Iq4XsBlock>(WeightFormat::kIq4Xs));
static_assert(HasBytesOf<Mxfp4Block>(WeightFormat::kMxfp4));

}  // namespace quire

#endif  // QUIRE_KERNELS_API_WEIGHT_BLOCK_LAYOUT_H_
