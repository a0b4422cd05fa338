// Weight blocks of random bytes, with scales that a test chooses.
#ifndef QUIRE_TESTS_KERNELS_WEIGHT_BLOCKS_H_
#define QUIRE_TESTS_KERNELS_WEIGHT_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/api/weight_format.h"
#include "tests/support/random.h"

namespace quire {

inline std::vector<std::byte> RandomBlocks(WeightFormat format,
                                           int64_t num_blocks,
                                           Random& random) {
  std::vector<std::byte> blocks(static_cast<size_t>(num_blocks * InfoOf(format).block_bytes));
  for (std::byte& byte : blocks) {
    byte = static_cast<std::byte>(random.Below(256));
  }
  return blocks;
}

inline void WriteHalf(uint16_t half, int64_t at, std::vector<std::byte>& blocks) {
  std::memcpy(&blocks[static_cast<size_t>(at)], &half, sizeof(half));
}

// Places in a block of its binary16 numbers: scale, then minimum.
inline std::vector<int64_t> PlacesOfHalves(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ4_1:
    case WeightFormat::kQ5_1:
    case WeightFormat::kQ4K:
    case WeightFormat::kQ5K:
      return {0, 2};
    case WeightFormat::kQ2K:
      return {80, 82};
    case WeightFormat::kQ3K:
      return {108};
    case WeightFormat::kQ6K:
      return {208};
    case WeightFormat::kQ4_0:
    case WeightFormat::kQ5_0:
    case WeightFormat::kQ8_0:
    case WeightFormat::kIq4Nl:
    case WeightFormat::kIq4Xs:
      return {0};
    default:
      return {};
  }
}

// Random blocks whose scales and minimums are finite and of both signs, and whose weights are.
inline std::vector<std::byte> FiniteBlocks(WeightFormat format,
                                           int64_t num_blocks,
                                           Random& random) {
  std::vector<std::byte> blocks = RandomBlocks(format, num_blocks, random);
  for (int64_t block = 0; block < num_blocks; ++block) {
    const int64_t begin = block * InfoOf(format).block_bytes;
    for (const int64_t place : PlacesOfHalves(format)) {
      const auto sign = static_cast<uint16_t>(random.Below(2) << 15);
      WriteHalf(static_cast<uint16_t>(sign | random.Below(0x7C00)), begin + place, blocks);
    }
    if (format == WeightFormat::kMxfp4) {
      blocks[static_cast<size_t>(begin)] = static_cast<std::byte>(random.Below(253));
    }
  }
  return blocks;
}

}  // namespace quire

#endif  // QUIRE_TESTS_KERNELS_WEIGHT_BLOCKS_H_
