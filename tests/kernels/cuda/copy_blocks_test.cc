#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/gpu_ops.h"
#include "tests/kernels/cuda/device_array.h"

namespace quire::gpu {
namespace {

using Pairs = std::vector<std::pair<BlockId, BlockId>>;

std::vector<uint8_t> MakePool(int64_t block_bytes, int64_t num_blocks) {
  std::vector<uint8_t> pool(static_cast<size_t>(block_bytes * num_blocks));
  uint32_t state = 1;
  for (uint8_t& byte : pool) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<uint8_t>(state >> 24);
  }
  return pool;
}

// The pool after the copies, by the kernel.
std::vector<uint8_t> Copied(const std::vector<uint8_t>& before,
                            int64_t block_bytes,
                            const Pairs& pairs) {
  std::vector<BlockId> flat;
  for (const auto& [src, dst] : pairs) {
    flat.push_back(src);
    flat.push_back(dst);
  }
  DeviceArray<uint8_t> pool(before);
  DeviceArray<BlockId> device_pairs(flat);
  CopyBlocksArgs args;
  args.pool = pool.data();
  args.block_bytes = block_bytes;
  args.pairs = device_pairs.data();
  args.num_pairs = static_cast<int32_t>(pairs.size());
  EXPECT_EQ(CopyBlocks(args, nullptr), 0);
  return pool.ToHost();
}

TEST(CopyBlocksTest, CopiesWholeBlocksAndNothingElse) {
  // One vector of 16 bytes, less than a row of threads, one more, exactly a CTA's chunk (32 KiB),
  // one vector to each side of it, and several chunks with a rest.
  for (int64_t block_bytes : {16, 2048, 4112, 32752, 32768, 32784, 98320}) {
    constexpr int64_t kNumBlocks = 9;
    const std::vector<uint8_t> before = MakePool(block_bytes, kNumBlocks);
    const Pairs pairs = {{1, 2}, {8, 3}, {1, 7}, {4, 6}, {0, 5}};
    std::vector<uint8_t> expected = before;
    for (const auto& [src, dst] : pairs) {
      std::memcpy(&expected[static_cast<size_t>(dst * block_bytes)],
                  &before[static_cast<size_t>(src * block_bytes)],
                  static_cast<size_t>(block_bytes));
    }

    EXPECT_EQ(Copied(before, block_bytes, pairs), expected) << "block of " << block_bytes;
  }
}

TEST(CopyBlocksTest, TheLastBlockOfThePoolIsCopiedToItsEndAndNoFurther) {
  constexpr int64_t kBlockBytes = 32768 + 16;
  const std::vector<uint8_t> before = MakePool(kBlockBytes, 2);

  const std::vector<uint8_t> after = Copied(before, kBlockBytes, {{0, 1}});

  EXPECT_EQ(std::memcmp(&after[kBlockBytes], &before[0], kBlockBytes), 0);
}

TEST(CopyBlocksTest, NoPairsMeansNoChange) {
  const std::vector<uint8_t> before = MakePool(64, 3);

  EXPECT_EQ(Copied(before, 64, {}), before);
}

}  // namespace
}  // namespace quire::gpu
