#include "worker/runtime/kv_pool_sizing.h"

#include <limits>
#include <memory>

#include <gtest/gtest.h>

#include "kernels/reference/reference_backend.h"
#include "tests/worker/runtime/fake_model.h"

namespace quire {
namespace {

constexpr int64_t kBlockBytes = 64;  // K and V of 4 tokens of 2 floats

class KvPoolSizingTest : public testing::Test {
 protected:
  KvPoolSizing Sizing(const KvCacheBudget& budget) const {
    return KvPoolSizing(model_, *backend_, budget);
  }

  FakeModel model_;
  std::unique_ptr<KernelBackend> backend_ = CreateReferenceBackend();
};

TEST_F(KvPoolSizingTest, TheBudgetDecidesHowManyBlocks) {
  const KvPoolSizing usual = Sizing({.bytes = 1 << 20, .num_blocks_override = 0});
  const KvCacheSpec spec = *usual.SpecFor(4, DType::kF32);
  const KvPoolSizing overridden = Sizing({.bytes = 1, .num_blocks_override = 123});
  const KvPoolSizing poor = Sizing({.bytes = 10, .num_blocks_override = 0});
  const KvPoolSizing rich = Sizing({.bytes = int64_t{1} << 62, .num_blocks_override = 0});

  EXPECT_EQ(usual.BlockBytes(spec), kBlockBytes);
  EXPECT_EQ(usual.MaxBlocks(spec), (1 << 20) / kBlockBytes);
  EXPECT_EQ(overridden.MaxBlocks(spec), 123);
  EXPECT_EQ(poor.MaxBlocks(spec), 0);
  EXPECT_EQ(rich.MaxBlocks(spec), 16777216);  // what both sides keep records of
}

TEST_F(KvPoolSizingTest, AnEpochTakesNoMorePoolsThanTheBudgetHolds) {
  const KvPoolSizing sizing = Sizing(
      {.bytes = 100 * kBlockBytes, .swap_space_bytes = 50 * kBlockBytes, .num_blocks_override = 0});
  const StepLimits modest = {.num_blocks = 10, .num_host_blocks = 3, .block_size_tokens = 4};
  StepLimits greedy = modest;
  greedy.num_blocks = std::numeric_limits<int32_t>::max();
  greedy.num_host_blocks = std::numeric_limits<int32_t>::max();
  StepLimits absurd = modest;
  absurd.block_size_tokens = 0;

  EXPECT_EQ(sizing.PoolBytes(modest, DType::kF32), 13 * kBlockBytes);
  EXPECT_EQ(sizing.PoolBytes(greedy, DType::kF32), 150 * kBlockBytes);
  EXPECT_EQ(sizing.PoolBytes(absurd, DType::kF32), 0);
}

}  // namespace
}  // namespace quire
