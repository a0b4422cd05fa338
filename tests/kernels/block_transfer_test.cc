#include "kernels/api/block_transfer.h"

#include <cstddef>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

#include "tests/kernels/cpu_backends.h"

namespace quire {
namespace {

constexpr int32_t kNumBlocks = 9;
constexpr int32_t kNumHostBlocks = 5;

// Every byte of the pool and of the host memory has its own number.
std::byte Pattern(size_t at, int salt) {
  return static_cast<std::byte>((at * 131 + static_cast<size_t>(salt)) % 251);
}

class BlockTransferTest : public CpuBackendTest {};

TEST_P(BlockTransferTest, MovesWholeBlocksAndNothingElse) {
  const std::vector<BlockId> blocks = {8, 1, 2, 5};
  const std::vector<HostBlockId> host_blocks = {0, 3, 4, 1};
  for (const TransferDirection direction :
       {TransferDirection::kToHost, TransferDirection::kToDevice}) {
    for (const int num_threads : {1, 3}) {
      auto backend = MakeBackend(num_threads);
      const KvCacheLayout layout = backend->LayoutFor({3, 2, 20, 8, DType::kBF16});
      const auto block_bytes = static_cast<size_t>(layout.block_bytes());
      auto host = backend->AllocateHost(layout.block_bytes() * kNumHostBlocks);
      ASSERT_TRUE(host.ok()) << host.status();
      auto* host_bytes = static_cast<std::byte*>((*host)->data());
      std::vector<std::byte> pool(block_bytes * kNumBlocks);
      for (size_t i = 0; i < pool.size(); ++i) {
        pool[i] = Pattern(i, 1);
      }
      for (size_t i = 0; i < block_bytes * kNumHostBlocks; ++i) {
        host_bytes[i] = Pattern(i, 2);
      }
      std::vector<std::byte> expected_pool = pool;
      std::vector<std::byte> expected_host(host_bytes, host_bytes + block_bytes * kNumHostBlocks);
      for (size_t i = 0; i < blocks.size(); ++i) {
        const size_t on_device = static_cast<size_t>(blocks[i]) * block_bytes;
        const size_t on_host = static_cast<size_t>(host_blocks[i]) * block_bytes;
        for (size_t at = 0; at < block_bytes; ++at) {
          if (direction == TransferDirection::kToHost) {
            expected_host[on_host + at] = pool[on_device + at];
          } else {
            expected_pool[on_device + at] = host_bytes[on_host + at];
          }
        }
      }

      const TransferId transfer =
          backend->StartTransfer({.direction = direction,
                                  .cache = {pool.data(), kNumBlocks, layout},
                                  .host = host_bytes,
                                  .blocks = blocks,
                                  .host_blocks = host_blocks});
      backend->WaitForTransfers();

      EXPECT_EQ(transfer, 1U);
      EXPECT_EQ(backend->TransfersDone(), 1U);
      EXPECT_EQ(pool, expected_pool);
      EXPECT_TRUE(std::equal(expected_host.begin(), expected_host.end(), host_bytes));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, BlockTransferTest, testing::ValuesIn(CpuIsas()), IsaName);

}  // namespace
}  // namespace quire
