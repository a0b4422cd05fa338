// Runs on the emulated library, whose copies begin as early and end as late as events let them
// (kernels/cuda/emulator/streams.h).
#include "kernels/gpu/gpu_transfers.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/api/kv_cache_layout.h"
#include "kernels/gpu/gpu_library.h"
#include "kernels/gpu/gpu_memory.h"
#include "kernels/gpu/staging_ring.h"

namespace quire {
namespace {

constexpr int32_t kNumBlocks = 10;

class GpuTransfersTest : public testing::Test {
 protected:
  GpuTransfersTest() : api_((*GpuLibrary::Open("emu", 0)).api()) {
    EXPECT_EQ(api_.create_stream(&compute_), 0);
    layout_ = SwizzledRows({1, 1, 16, 8, DType::kBF16});
    EXPECT_EQ(api_.allocate(&pool_, PoolBytes()), 0);
    EXPECT_EQ(api_.allocate_pinned(&host_, PoolBytes()), 0);
  }
  ~GpuTransfersTest() override {
    EXPECT_EQ(api_.free(pool_), 0);
    EXPECT_EQ(api_.free_pinned(host_), 0);
    EXPECT_EQ(api_.destroy_stream(compute_), 0);
  }

  size_t PoolBytes() const { return static_cast<size_t>(layout_.block_bytes() * kNumBlocks); }
  uint8_t* InPool(BlockId block) const {
    return static_cast<uint8_t*>(pool_) + block * layout_.block_bytes();
  }
  const uint8_t* OnHost(HostBlockId block) const {
    return static_cast<const uint8_t*>(host_) + block * layout_.block_bytes();
  }
  // Stands for a kernel: sets every byte of the block to the value, in stream order.
  void Compute(BlockId block, int value) {
    EXPECT_EQ(
        api_.fill_bytes(InPool(block), value, static_cast<size_t>(layout_.block_bytes()), compute_),
        0);
  }
  TransferId Start(GpuTransfers& transfers,
                   TransferDirection direction,
                   const std::vector<BlockId>& blocks,
                   const std::vector<HostBlockId>& host_blocks) {
    return transfers.Start({.direction = direction,
                            .cache = {pool_, kNumBlocks, layout_},
                            .host = static_cast<std::byte*>(host_),
                            .blocks = blocks,
                            .host_blocks = host_blocks});
  }

  const gpu::GpuApi& api_;
  gpu::Stream compute_ = nullptr;
  KvCacheLayout layout_;
  void* pool_ = nullptr;
  void* host_ = nullptr;
};

TEST_F(GpuTransfersTest, ABlockLeavesAfterItWasWritten) {
  GpuTransfers transfers(api_, compute_);
  Compute(3, 11);
  Compute(4, 12);
  Compute(5, 13);
  Compute(8, 14);
  // The blocks are neighbours on both sides, on the device alone, and on the host alone.
  Start(transfers, TransferDirection::kToHost, {3, 4, 5, 8}, {5, 6, 0, 1});
  transfers.Wait();
  EXPECT_EQ(OnHost(5)[0], 11);
  EXPECT_EQ(OnHost(6)[layout_.block_bytes() - 1], 12);
  EXPECT_EQ(OnHost(0)[0], 13);
  EXPECT_EQ(OnHost(1)[0], 14);
}

TEST_F(GpuTransfersTest, WhatOrdersItselfAfterATransferSeesIt) {
  GpuTransfers transfers(api_, compute_);
  Compute(1, 21);
  const TransferId out = Start(transfers, TransferDirection::kToHost, {1}, {2});
  transfers.OrderAfter(out);
  Compute(1, 22);  // the block is used again
  const TransferId in = Start(transfers, TransferDirection::kToDevice, {7}, {2});
  transfers.OrderAfter(in);
  Compute(8, 0);
  EXPECT_EQ(api_.synchronize(compute_), 0);
  EXPECT_EQ(OnHost(2)[0], 21);
  EXPECT_EQ(InPool(7)[0], 21);
  EXPECT_EQ(InPool(1)[0], 22);
}

TEST_F(GpuTransfersTest, ABlockArrivesAfterItsPlaceWasLastUsed) {
  GpuTransfers transfers(api_, compute_);
  Compute(1, 31);
  transfers.OrderAfter(Start(transfers, TransferDirection::kToHost, {1}, {0}));
  Compute(2, 32);
  Start(transfers, TransferDirection::kToDevice, {2}, {0});
  transfers.Wait();
  EXPECT_EQ(api_.synchronize(compute_), 0);
  EXPECT_EQ(InPool(2)[0], 31);
}

TEST_F(GpuTransfersTest, DoneIsTheLastOfAnUnbrokenRow) {
  GpuTransfers transfers(api_, compute_);
  EXPECT_EQ(transfers.Done(), 0U);
  Compute(1, 1);
  EXPECT_EQ(Start(transfers, TransferDirection::kToHost, {1}, {0}), 1U);
  EXPECT_EQ(Start(transfers, TransferDirection::kToDevice, {2}, {3}), 2U);
  EXPECT_EQ(Start(transfers, TransferDirection::kToHost, {1}, {4}), 3U);
  EXPECT_LE(transfers.Done(), 3U);
  transfers.Wait();
  EXPECT_EQ(transfers.Done(), 3U);
}

// Every slot is read late. The ring must not hand out a slot that was not read.
TEST_F(GpuTransfersTest, TheStagingRingKeepsWhatIsNotRead) {
  constexpr int kSteps = 20;
  void* results = nullptr;
  ASSERT_EQ(api_.allocate(&results, kSteps), 0);
  gpu::Stream copies = nullptr;
  ASSERT_EQ(api_.create_stream(&copies), 0);
  {
    StagingRing ring(api_);
    ASSERT_TRUE(ring.Reserve(1).ok());
    for (int step = 0; step < kSteps; ++step) {
      std::byte* slot = ring.Next();
      *slot = static_cast<std::byte>(step);
      auto* to = static_cast<std::byte*>(results) + step;
      EXPECT_EQ(api_.copy_to_device(to, slot, 1, copies), 0);
      ring.MarkRead(copies);
    }
  }
  EXPECT_EQ(api_.destroy_stream(copies), 0);
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_EQ(static_cast<const uint8_t*>(results)[step], step);
  }
  EXPECT_EQ(api_.free(results), 0);
}

}  // namespace
}  // namespace quire
