#include "worker/runtime/kv_pool_sizing.h"

#include <limits>
#include <memory>

#include <gtest/gtest.h>

#include "common/base/error.h"
#include "kernels/reference/reference_backend.h"
#include "tests/worker/runtime/fake_model.h"
#include "tests/worker/runtime/late_backend.h"

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

class BackendWithPages : public LateBackend {
 public:
  explicit BackendWithPages(int64_t page_bytes)
      : LateBackend(CreateReferenceBackend()), page_bytes_(page_bytes) {}

  int64_t window_page_bytes() const override { return page_bytes_; }

 private:
  const int64_t page_bytes_;
};

struct PageCase {
  int64_t page_bytes = 0;
  int32_t blocks_per_page = 1;
  int64_t block_bytes = 0;
};

TEST_F(KvPoolSizingTest, SmallBlocksShareALargePage) {
  for (const PageCase& c : {PageCase{4096, 1, 4096},       // too small to be shared
                            PageCase{1 << 16, 1024, 64},   // of 64-byte blocks
                            PageCase{96 << 10, 1024, 96},  // 1536 would fit, no power of two
                            PageCase{1 << 21, 32768, 64}}) {
    const BackendWithPages backend(c.page_bytes);
    const KvPoolSizing sizing(model_, backend, {.bytes = 4 << 20, .backend = KvBackend::kVmm});
    const KvCacheSpec spec = *sizing.SpecFor(4, DType::kF32);
    const StepLimits limits = {.block_size_tokens = 4, .max_sequences = 3, .max_model_len = 5000};

    EXPECT_EQ(sizing.BlocksPerPage(spec), c.blocks_per_page);
    EXPECT_EQ(sizing.BlockBytes(spec), c.block_bytes);
    EXPECT_EQ(sizing.MemoryOf(spec).padding_bytes, c.block_bytes - kBlockBytes);
    EXPECT_EQ(*sizing.NumPlaces(limits, spec), 3 * ((1250 - 1) / c.blocks_per_page + 1));
    EXPECT_EQ(sizing.MaxBlocks(spec), (4 << 20) / c.page_bytes * c.blocks_per_page);
  }
}

TEST_F(KvPoolSizingTest, WithoutWindowsNoBlocksShareAPage) {
  const BackendWithPages backend(1 << 21);
  const KvPoolSizing sizing(model_, backend, {.bytes = 1 << 20});

  EXPECT_EQ(sizing.BlocksPerPage(*sizing.SpecFor(4, DType::kF32)), 1);
}

class BackendOfSwizzledRows : public LateBackend {
 public:
  BackendOfSwizzledRows() : LateBackend(CreateReferenceBackend()) {}

  KvCacheLayout LayoutFor(const KvCacheSpec& spec) const override { return SwizzledRows(spec); }
};

TEST_F(KvPoolSizingTest, BlocksTooSmallForAGpuAreRefused) {
  const BackendOfSwizzledRows backend;
  const KvPoolSizing sizing(model_, backend, {.bytes = 1 << 20});

  for (const int32_t block_size : {1, 2, 4}) {
    EXPECT_EQ(ReasonOf(sizing.SpecFor(block_size, DType::kF32).status()), "STEP_LIMITS");
  }
  EXPECT_TRUE(sizing.SpecFor(8, DType::kF32).ok());
  EXPECT_TRUE(Sizing({.bytes = 1 << 20}).SpecFor(1, DType::kF32).ok()) << "the CPU's order";
}

}  // namespace
}  // namespace quire
