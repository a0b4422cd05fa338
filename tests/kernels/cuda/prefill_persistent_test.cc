// Persistent prefill: any grid gives the same bits, its counter resets itself, and its results are
// those of the kernel that has a CTA for each item. paged_prefill_test compares it with the
// reference at all types, sizes and lengths.
#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/runtime.h"
#include "tests/kernels/cuda/attention_data.h"
#include "tests/kernels/cuda/device_array.h"

namespace quire::gpu {
namespace {

constexpr int32_t kHeadDims[] = {64, 80, 96, 112, 128, 256};

// Sequences of one tile and of several, of few rows and of several items, and padding.
AttentionProblem MixedBatch(int32_t head_dim) {
  return {.head_dim = head_dim,
          .num_heads = 6,
          .num_kv_heads = 2,
          .sequences = {{.query_len = 60, .seq_len = 300, .key = 1},
                        {.query_len = 1, .seq_len = 129, .key = 2},
                        {.query_len = 45, .seq_len = 45, .key = 3},
                        {.query_len = 2, .seq_len = 0, .key = 4},
                        {.query_len = 22, .seq_len = 128, .key = 5},
                        {.query_len = 3, .seq_len = 3, .key = 6}}};
}

class PrefillPersistentTest : public testing::Test {
 protected:
  void SetUp() override {
    DeviceInfo info;
    ASSERT_EQ(QueryDevice(0, &info), 0);
    if (info.compute_capability != 90) {
      GTEST_SKIP() << "needs compute capability 9.0";
    }
  }

  static std::vector<PrefillItem> ItemsOf(const AttentionData& data) {
    const int32_t group = data.problem().num_heads / data.problem().num_kv_heads;
    std::vector<PrefillItem> items;
    for (size_t s = 0; s < data.seq_lens().size(); ++s) {
      const int32_t num_rows = (data.query_start()[s + 1] - data.query_start()[s]) * group;
      for (int32_t row = 0; row < num_rows; row += kPrefillRows) {
        items.push_back({static_cast<int32_t>(s), row});
      }
    }
    return items;
  }

  // All calls of a test use one counter, which each must leave at 0.
  std::vector<uint16_t> Prefilled(PrefillKernel kernel,
                                  const AttentionData& data,
                                  int32_t num_ctas,
                                  const std::vector<PrefillItem>& items) {
    DeviceAttention device(data);
    DeviceArray<PrefillItem> device_items(items);
    const PrefillPlan plan = {.items = device_items.data(),
                              .num_items = static_cast<int32_t>(items.size()),
                              .kernel = kernel,
                              .next_item = next_item_.data(),
                              .num_ctas = num_ctas};
    EXPECT_EQ(Prefill(device.params(), plan, data.problem().dtype, nullptr), 0);
    EXPECT_EQ(next_item_.ToHost()[0], 0);
    return device.Out();
  }
  std::vector<uint16_t> Prefilled(const AttentionData& data, int32_t num_ctas) {
    return Prefilled(PrefillKernel::kPersistent, data, num_ctas, ItemsOf(data));
  }

 private:
  DeviceArray<int32_t> next_item_{std::vector<int32_t>{0}};
};

TEST_F(PrefillPersistentTest, AnyGridGivesTheSameBits) {
  for (const int32_t head_dim : kHeadDims) {
    SCOPED_TRACE(head_dim);
    const AttentionData data(MixedBatch(head_dim));
    const std::vector<uint16_t> expected = Prefilled(data, 1);
    ExpectClose(data, expected);

    for (const int32_t num_ctas : {0, 2, 3, 5, 132}) {
      EXPECT_EQ(Prefilled(data, num_ctas), expected) << num_ctas << " CTAs";
    }
  }
}

TEST_F(PrefillPersistentTest, ASequenceHasTheSameBitsAloneAndInABatch) {
  for (const int32_t head_dim : {80, 128}) {
    const AttentionData batch(MixedBatch(head_dim));
    const std::vector<uint16_t> together = Prefilled(batch, 2);
    const auto width = static_cast<int64_t>(batch.OutWidth());
    for (size_t s = 0; s < batch.seq_lens().size(); ++s) {
      AttentionProblem problem = MixedBatch(head_dim);
      problem.sequences = {batch.problem().sequences[s]};

      const std::vector<uint16_t> rows = {together.begin() + batch.query_start()[s] * width,
                                          together.begin() + batch.query_start()[s + 1] * width};
      EXPECT_EQ(Prefilled(AttentionData(problem), 1), rows) << head_dim << ", sequence " << s;
    }
  }
}

TEST_F(PrefillPersistentTest, ItHasTheBitsOfTheKernelWithACtaForEachItem) {
  for (const int32_t head_dim : {64, 128, 256}) {
    for (const int32_t window : {0, 1, 70, 200}) {
      for (const bool alibi : {false, true}) {
        AttentionProblem problem = MixedBatch(head_dim);
        problem.sliding_window = window;
        problem.alibi = alibi;
        problem.block_size_tokens = alibi ? 64 : 8;
        const AttentionData data(problem);
        SCOPED_TRACE(testing::Message() << head_dim << ", window " << window);

        EXPECT_EQ(Prefilled(data, 3), Prefilled(PrefillKernel::kWgmma, data, 0, ItemsOf(data)));
      }
    }
  }
}

TEST_F(PrefillPersistentTest, WindowsAndAlibiWorkAtEveryHeadDim) {
  for (const int32_t head_dim : kHeadDims) {
    for (const int32_t window : {0, 17, 64, 130}) {
      AttentionProblem problem = MixedBatch(head_dim);
      problem.dtype = problem.cache_dtype = DType::kF16;
      problem.sliding_window = window;
      problem.alibi = window != 64;
      problem.block_size_tokens = 32;
      problem.has_gaps = window == 17;
      SCOPED_TRACE(testing::Message() << head_dim << ", window " << window);
      const AttentionData data(problem);

      ExpectClose(data, Prefilled(data, 2));
    }
  }
}

TEST_F(PrefillPersistentTest, ChunksGiveTheBitsOfTheWholePrompt) {
  for (const int32_t head_dim : kHeadDims) {
    for (const int32_t window : {0, 65}) {
      AttentionProblem problem = {
          .head_dim = head_dim, .num_heads = 2, .num_kv_heads = 1, .sliding_window = window};
      problem.sequences = {{.query_len = 150, .seq_len = 150, .key = 7}};
      const std::vector<uint16_t> whole = Prefilled(AttentionData(problem), 2);
      std::vector<uint16_t> in_chunks;
      for (const auto& [begin, end] : {std::pair(0, 13), std::pair(13, 128), std::pair(128, 150)}) {
        problem.sequences = {{.query_len = end - begin, .seq_len = end, .key = 7}};
        const std::vector<uint16_t> chunk = Prefilled(AttentionData(problem), 1);
        in_chunks.insert(in_chunks.end(), chunk.begin(), chunk.end());
      }
      EXPECT_EQ(in_chunks, whole) << head_dim << ", window " << window;
    }
  }
}

// A copy then brings a part of a block, because a block has several tiles.
TEST_F(PrefillPersistentTest, ABlockMayBeLargerThanATile) {
  for (const int32_t head_dim : kHeadDims) {
    for (const int32_t block_size : {256, 512}) {
      SCOPED_TRACE(testing::Message() << head_dim << ", block size " << block_size);
      AttentionProblem problem = MixedBatch(head_dim);
      problem.block_size_tokens = block_size;
      problem.sliding_window = block_size == 512 ? 150 : 0;
      const AttentionData data(problem);

      ExpectClose(data, Prefilled(data, 2));
    }
  }
}

TEST_F(PrefillPersistentTest, ManyShortItemsFollowEachOther) {
  AttentionProblem problem = {.head_dim = 80, .num_heads = 2, .num_kv_heads = 2};
  for (int32_t i = 0; i < 40; ++i) {
    problem.sequences.push_back(
        {.query_len = 1 + i % 3, .seq_len = 1 + i * 7, .key = static_cast<uint64_t>(i) + 1});
  }
  const AttentionData data(problem);

  const std::vector<uint16_t> out = Prefilled(data, 1);

  ExpectClose(data, out);
  EXPECT_EQ(Prefilled(data, 80), out);  // as many CTAs as pairs
  EXPECT_EQ(Prefilled(data, 79), out);
}

// Padding may have more tokens than a tile has keys.
TEST_F(PrefillPersistentTest, ItemsWithoutContextArePassedOver) {
  AttentionProblem problem = {.num_heads = 2, .num_kv_heads = 1};
  problem.sequences = {{.query_len = 400, .seq_len = 0, .key = 1},
                       {.query_len = 9, .seq_len = 40, .key = 2},
                       {.query_len = 400, .seq_len = 0, .key = 3}};
  const AttentionData data(problem);
  for (const int32_t num_ctas : {1, 2, 100}) {
    ExpectClose(data, Prefilled(data, num_ctas));
  }

  const std::vector<bool> computed(static_cast<size_t>(data.num_tokens()), false);
  ExpectClose(data,
              Prefilled(PrefillKernel::kPersistent, data, 2, {{0, 0}, {2, 0}, {2, kPrefillRows}}),
              &computed);
}

TEST_F(PrefillPersistentTest, WithoutACounterItIsRefused) {
  const AttentionData data(MixedBatch(64));
  DeviceAttention device(data);
  DeviceArray<PrefillItem> items(std::vector<PrefillItem>{{0, 0}});
  const PrefillPlan plan = {
      .items = items.data(), .num_items = 1, .kernel = PrefillKernel::kPersistent};

  EXPECT_EQ(Prefill(device.params(), plan, DType::kBF16, nullptr), kUnsupported);
}

}  // namespace
}  // namespace quire::gpu
