#include <cstddef>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"

#include "tests/kernels/cpu_backends.h"

namespace quire {
namespace {

class CopyBlocksTest : public CpuBackendTest {};

TEST_P(CopyBlocksTest, CopiesWholeBlocksAndNothingElse) {
  for (int num_threads : {1, 3}) {
    auto backend = MakeBackend(num_threads);
    KvCacheSpec spec{3, 2, 20, 5, DType::kBF16};
    KvCacheLayout layout = backend->LayoutFor(spec);
    auto block_bytes = static_cast<size_t>(layout.block_bytes());
    constexpr int64_t kNumBlocks = 9;
    std::vector<unsigned char> pool(block_bytes * kNumBlocks);
    for (size_t i = 0; i < pool.size(); ++i) {
      pool[i] = static_cast<unsigned char>(i * 131 % 251);
    }
    std::vector<unsigned char> expected = pool;
    const std::vector<BlockId> src = {1, 8, 1, 4};
    const std::vector<BlockId> dst = {2, 3, 7, 6};
    for (size_t i = 0; i < src.size(); ++i) {
      std::memcpy(expected.data() + static_cast<size_t>(dst[i]) * block_bytes,
                  pool.data() + static_cast<size_t>(src[i]) * block_bytes,
                  block_bytes);
    }

    backend->CopyBlocks({{pool.data(), kNumBlocks, layout}, src, dst});

    EXPECT_EQ(pool, expected);
  }
}

TEST_P(CopyBlocksTest, NoPairsMeansNoChange) {
  auto backend = MakeBackend(2);
  KvCacheLayout layout = backend->LayoutFor({1, 1, 16, 4, DType::kF32});
  std::vector<unsigned char> pool(static_cast<size_t>(layout.block_bytes()), 7);
  const std::vector<unsigned char> before = pool;

  backend->CopyBlocks({{pool.data(), 1, layout}, {}, {}});

  EXPECT_EQ(pool, before);
}

INSTANTIATE_TEST_SUITE_P(Cpu, CopyBlocksTest, testing::ValuesIn(CpuIsas()), IsaName);

}  // namespace
}  // namespace quire
