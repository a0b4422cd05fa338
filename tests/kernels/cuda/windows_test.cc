// Windows: what places show, and attention that reads through them with the bits it has by tables.
#include "kernels/cuda/windows.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/runtime.h"
#include "tests/kernels/cuda/attention_data.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/line_decode.h"
#include "tests/kernels/cuda/windowed_attention.h"

namespace quire::gpu {
namespace {

// ---- Attention ----------------------------------------------------------------------------------

constexpr int32_t kSplitTokens = 64;

void RunDecode(const PagedAttentionParams& params, const AttentionData& data) {
  const AttentionProblem& problem = data.problem();
  int32_t max_splits = 0;
  for (const int32_t seq_len : data.seq_lens()) {
    max_splits += (seq_len + kSplitTokens - 1) / kSplitTokens;
  }
  DeviceArray<int32_t> split_start(static_cast<int64_t>(data.seq_lens().size()) + 1);
  DeviceArray<float> partial_out(int64_t{max_splits} * problem.num_heads * problem.head_dim);
  DeviceArray<float> partial_state(int64_t{max_splits} * problem.num_heads * 2);
  DecodePlan plan = {.num_decodes = params.num_seqs, .split_tokens = kSplitTokens};
  ASSERT_EQ(PlanDecode(params, plan, split_start.data(), nullptr), 0);
  plan.split_start = split_start.data();
  plan.partial_out = partial_out.data();
  plan.partial_state = partial_state.data();
  plan.num_ctas = 3;
  ASSERT_EQ(Decode(params, plan, problem.dtype, nullptr), 0);
  ASSERT_EQ(Synchronize(nullptr), 0);
}

// Returns what Prefill returned.
int RunPrefill(const PagedAttentionParams& params,
               const AttentionData& data,
               PrefillKernel kernel) {
  const int32_t group = data.problem().num_heads / data.problem().num_kv_heads;
  std::vector<PrefillItem> items;
  for (size_t s = 0; s < data.seq_lens().size(); ++s) {
    const int32_t num_rows = (data.query_start()[s + 1] - data.query_start()[s]) * group;
    for (int32_t row = 0; row < num_rows; row += kPrefillRows) {
      items.push_back({static_cast<int32_t>(s), row});
    }
  }
  DeviceArray<PrefillItem> device_items(items);
  DeviceArray<int32_t> next_item(std::vector<int32_t>{0});
  const PrefillPlan plan = {.items = device_items.data(),
                            .num_items = static_cast<int32_t>(items.size()),
                            .kernel = kernel,
                            .next_item = next_item.data()};
  const int error = Prefill(params, plan, data.problem().dtype, nullptr);
  EXPECT_EQ(Synchronize(nullptr), 0);
  return error;
}

std::vector<AttentionProblem> Problems() {
  std::vector<AttentionProblem> problems;
  for (const int32_t head_dim : {64, 128, 256}) {
    for (const int32_t block_size : {8, 16, 64}) {
      AttentionProblem problem;
      problem.head_dim = head_dim;
      problem.block_size_tokens = block_size;
      problem.alibi = block_size == 64;
      problem.sliding_window = block_size == 8 ? 70 : 0;
      problems.push_back(problem);
    }
  }
  problems[1].cache_dtype = DType::kF8E4M3;
  problems[4].dtype = problems[4].cache_dtype = DType::kF16;
  problems[5].has_gaps = true;
  return problems;
}

TEST(WindowedAttentionTest, DecodeHasTheBitsOfBlockTables) {
  for (AttentionProblem problem : Problems()) {
    for (const int32_t seq_len : {1, 16, 65, 200, 131}) {
      problem.sequences.push_back({.seq_len = seq_len, .key = problem.sequences.size() + 1});
    }
    SCOPED_TRACE(problem.head_dim);
    const AttentionData data(problem);
    DeviceAttention by_tables(data);
    WindowedAttention by_windows(data);

    RunDecode(by_tables.params(), data);
    RunDecode(by_windows.params(), data);

    EXPECT_EQ(by_windows.Out(), by_tables.Out());
    ExpectClose(data, by_windows.Out());
  }
}

TEST(WindowedAttentionTest, DecodeByLinesHasTheBitsOfBlockTables) {
  for (AttentionProblem problem : Problems()) {
    for (const int32_t seq_len : {1, 16, 65, 200, 131}) {
      problem.sequences.push_back({.query_len = std::min(seq_len, 3),
                                   .seq_len = seq_len,
                                   .key = problem.sequences.size() + 1});
    }
    SCOPED_TRACE(problem.head_dim);
    const AttentionData data(problem);
    DeviceAttention by_tables(data);
    WindowedAttention by_windows(data);
    LineDecode decode(by_tables.params(), {.max_query_tokens = 3});

    decode.Run(by_tables.params(), problem.dtype);
    decode.Run(by_windows.params(), problem.dtype);

    EXPECT_EQ(by_windows.Out(), by_tables.Out());
    ExpectClose(data, by_windows.Out());
  }
}

TEST(WindowedAttentionTest, PrefillHasTheBitsOfBlockTables) {
  for (AttentionProblem problem : Problems()) {
    problem.sequences = {{.query_len = 40, .seq_len = 40, .key = 1},
                         {.query_len = 17, .seq_len = 150, .key = 2},
                         {.query_len = 1, .seq_len = 90, .key = 3}};
    const AttentionData data(problem);
    for (const PrefillKernel kernel :
         {PrefillKernel::kMma, PrefillKernel::kWgmma, PrefillKernel::kPersistent}) {
      SCOPED_TRACE(testing::Message()
                   << "head_dim " << problem.head_dim << ", kernel " << static_cast<int>(kernel));
      DeviceAttention by_tables(data);
      WindowedAttention by_windows(data);

      const int error = RunPrefill(by_tables.params(), data, kernel);
      EXPECT_EQ(RunPrefill(by_windows.params(), data, kernel), error);

      EXPECT_EQ(by_windows.Out(), by_tables.Out());
      EXPECT_TRUE(error == 0 || kernel != PrefillKernel::kMma);
    }
  }
}

// ---- Places -------------------------------------------------------------------------------------

class WindowsTest : public testing::Test {
 protected:
  static constexpr int64_t kNumBlocks = 8;
  static constexpr int64_t kNumPlaces = 64;

  WindowsTest() {
    EXPECT_EQ(WindowPageBytes(&block_bytes_), 0);
    EXPECT_EQ(CreateWindows(
                  {.block_bytes = block_bytes_, .num_blocks = kNumBlocks, .num_places = kNumPlaces},
                  &windows_),
              0);
    for (int block = 0; block < kNumBlocks; ++block) {
      Write(block, block + 1);
    }
  }
  ~WindowsTest() override { EXPECT_EQ(DestroyWindows(windows_.handle), 0); }

  void Write(BlockId block, int byte) const {
    auto* pool = static_cast<uint8_t*>(windows_.pool);
    EXPECT_EQ(
        FillBytes(pool + static_cast<size_t>(block) * block_bytes_, byte, block_bytes_, nullptr),
        0);
  }

  // The byte that the whole place holds; -1: not the same everywhere.
  int At(int64_t place) const {
    std::vector<uint8_t> bytes(block_bytes_);
    const auto* places = static_cast<const uint8_t*>(windows_.places);
    EXPECT_EQ(CopyToHost(bytes.data(),
                         places + static_cast<size_t>(place) * block_bytes_,
                         block_bytes_,
                         nullptr),
              0);
    EXPECT_EQ(Synchronize(nullptr), 0);
    return bytes == std::vector<uint8_t>(block_bytes_, bytes[0]) ? bytes[0] : -1;
  }

  int Map(int64_t place, BlockId block, int64_t count = 1) const {
    return MapPlaces(windows_.handle, place, block, count);
  }

  size_t block_bytes_ = 0;
  Windows windows_;
};

TEST_F(WindowsTest, ARunOfPlacesShowsARunOfBlocks) {
  ASSERT_EQ(Map(5, 2, 3), 0);

  EXPECT_EQ(At(5), 3);
  EXPECT_EQ(At(6), 4);
  EXPECT_EQ(At(7), 5);
}

TEST_F(WindowsTest, WhatIsWrittenThroughThePoolIsSeenWhereverTheBlockIsShown) {
  ASSERT_EQ(Map(0, 4), 0);
  ASSERT_EQ(Map(63, 4), 0);

  Write(4, 77);

  EXPECT_EQ(At(0), 77);
  EXPECT_EQ(At(63), 77);
}

TEST_F(WindowsTest, APlaceThatIsMappedAnewShowsTheOtherBlock) {
  ASSERT_EQ(Map(10, 0, 4), 0);
  ASSERT_EQ(Map(12, 6, 2), 0);  // of the run the second half, and one that showed nothing
  ASSERT_EQ(Map(9, 7), 0);

  EXPECT_EQ(At(9), 8);
  EXPECT_EQ(At(10), 1);
  EXPECT_EQ(At(11), 2);
  EXPECT_EQ(At(12), 7);
  EXPECT_EQ(At(13), 8);
}

TEST_F(WindowsTest, WhatWasUnmappedInTheMiddleCanBeMappedAgain) {
  ASSERT_EQ(Map(0, 0, 8), 0);
  ASSERT_EQ(UnmapPlaces(windows_.handle, 2, 3), 0);
  ASSERT_EQ(UnmapPlaces(windows_.handle, 0, kNumPlaces), 0);
  ASSERT_EQ(UnmapPlaces(windows_.handle, 0, kNumPlaces), 0);

  ASSERT_EQ(Map(1, 3, 2), 0);

  EXPECT_EQ(At(1), 4);
  EXPECT_EQ(At(2), 5);
}

// A swap moves neighbouring blocks by one copy, although each block has its own memory behind it.
TEST_F(WindowsTest, OneCopyMovesNeighbouringBlocks) {
  void* host = nullptr;
  const size_t bytes = 3 * block_bytes_;
  ASSERT_EQ(AllocatePinned(&host, bytes), 0);
  Stream stream = nullptr;
  ASSERT_EQ(CreateStream(&stream), 0);
  ASSERT_EQ(Synchronize(nullptr), 0);
  void* blocks = static_cast<uint8_t*>(windows_.pool) + block_bytes_;
  const void* from = blocks;
  ASSERT_EQ(CopyMany(&host, &from, &bytes, 1, stream), 0);
  ASSERT_EQ(Synchronize(stream), 0);
  Write(1, 0);
  Write(2, 0);
  Write(3, 0);
  ASSERT_EQ(Synchronize(nullptr), 0);
  ASSERT_EQ(Map(20, 1, 3), 0);

  const void* back = host;
  ASSERT_EQ(CopyMany(&blocks, &back, &bytes, 1, stream), 0);
  ASSERT_EQ(Synchronize(stream), 0);

  EXPECT_EQ(At(20), 2);
  EXPECT_EQ(At(21), 3);
  EXPECT_EQ(At(22), 4);
  EXPECT_EQ(DestroyStream(stream), 0);
  EXPECT_EQ(FreePinned(host), 0);
}

TEST_F(WindowsTest, WindowsThatAreTooLargeAreRefused) {
  constexpr int64_t kTooMany = int64_t{1} << 40;
  Windows windows;

  EXPECT_NE(CreateWindows({.block_bytes = block_bytes_, .num_blocks = kTooMany, .num_places = 1},
                          &windows),
            0);
  EXPECT_NE(CreateWindows({.block_bytes = block_bytes_, .num_blocks = 1, .num_places = kTooMany},
                          &windows),
            0);
  EXPECT_EQ(windows.handle, nullptr);
  EXPECT_EQ(DestroyWindows(nullptr), 0);
}

}  // namespace
}  // namespace quire::gpu
