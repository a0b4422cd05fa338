#include <cstdint>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/gpu_ops.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/cuda/device_array.h"

namespace quire::gpu {
namespace {

struct Pairs {
  std::vector<BlockId> src;
  std::vector<BlockId> dst;
};

std::vector<uint8_t> MakePool(int64_t block_bytes, int64_t num_blocks) {
  std::vector<uint8_t> pool(static_cast<size_t>(block_bytes * num_blocks));
  uint32_t state = 1;
  for (uint8_t& byte : pool) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<uint8_t>(state >> 24);
  }
  return pool;
}

KvCacheView PoolOf(void* base, int64_t block_bytes, int64_t num_blocks) {
  return {base, num_blocks, {.dtype = DType::kInt8, .block_stride = block_bytes}};
}

// The pool after the copies, by the kernel.
std::vector<uint8_t> Copied(const std::vector<uint8_t>& before,
                            int64_t block_bytes,
                            const Pairs& pairs) {
  DeviceArray<uint8_t> pool(before);
  DeviceArray<BlockId> src(pairs.src);
  DeviceArray<BlockId> dst(pairs.dst);
  EXPECT_EQ(CopyBlocks({.cache = PoolOf(pool.data(), block_bytes, pool.size() / block_bytes),
                        .src = {src.data(), pairs.src.size()},
                        .dst = {dst.data(), pairs.dst.size()}},
                       nullptr),
            0);
  return pool.ToHost();
}

TEST(CopyBlocksTest, CopiesWholeBlocksAndNothingElse) {
  // One vector of 16 bytes, less than a row of threads, one more, exactly a CTA's chunk (32 KiB),
  // one vector to each side of it, and several chunks with a rest.
  for (int64_t block_bytes : {16, 2048, 4112, 32752, 32768, 32784, 98320}) {
    constexpr int64_t kNumBlocks = 9;
    const std::vector<uint8_t> before = MakePool(block_bytes, kNumBlocks);
    const Pairs pairs = {.src = {1, 8, 1, 4, 0}, .dst = {2, 3, 7, 6, 5}};
    std::vector<uint8_t> expected = before;
    reference::CopyBlocks({.cache = PoolOf(expected.data(), block_bytes, kNumBlocks),
                           .src = pairs.src,
                           .dst = pairs.dst});

    EXPECT_EQ(Copied(before, block_bytes, pairs), expected) << "block of " << block_bytes;
  }
}

TEST(CopyBlocksTest, TheLastBlockOfThePoolIsCopiedToItsEndAndNoFurther) {
  constexpr int64_t kBlockBytes = 32768 + 16;
  const std::vector<uint8_t> before = MakePool(kBlockBytes, 2);

  const std::vector<uint8_t> after = Copied(before, kBlockBytes, {.src = {0}, .dst = {1}});

  EXPECT_EQ(std::memcmp(&after[kBlockBytes], &before[0], kBlockBytes), 0);
}

TEST(CopyBlocksTest, NoPairsMeansNoChange) {
  const std::vector<uint8_t> before = MakePool(64, 3);

  EXPECT_EQ(Copied(before, 64, {}), before);
}

}  // namespace
}  // namespace quire::gpu
