// Offsets beyond 32 bits. Operations in a pool, a table or rows of 12 GiB must give the bits that
// they give in small ones. Skipped if so much address space is not available.
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/gpu_ops.h"
#include "tests/kernels/cuda/attention_data.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/large_array.h"
#include "tests/kernels/cuda/line_decode.h"
#include "tests/kernels/cuda/row_compare.h"

namespace quire::gpu {
namespace {

constexpr int64_t kLargeBytes = int64_t{12} << 30;
constexpr int32_t kHeadDims[] = {64, 80, 96, 112, 128, 256};
constexpr DType kCacheDTypes[] = {DType::kBF16, DType::kF8E4M3};

// Where block `id` of a small pool of num_blocks goes: every other one to the end of the large
// pool, the rest to a quarter of it, between 2^31 and 2^32 bytes.
BlockId FarBlock(BlockId id, int64_t num_blocks, int64_t block_bytes) {
  const int64_t num_far = kLargeBytes / block_bytes;
  return static_cast<BlockId>(id % 2 == 0 ? num_far / 4 + id : num_far - num_blocks + id);
}

template <typename T>
std::vector<T> BlockOf(const std::vector<T>& pool, int64_t block, int64_t block_bytes) {
  return {pool.begin() + block * block_bytes, pool.begin() + (block + 1) * block_bytes};
}

AttentionProblem ProblemOf(int32_t head_dim, DType cache_dtype) {
  return {.cache_dtype = cache_dtype,
          .head_dim = head_dim,
          .sequences = {{.query_len = 1, .seq_len = 70, .key = 1},
                        {.query_len = 1, .seq_len = 1, .key = 2},
                        {.query_len = 1, .seq_len = 33, .key = 3}}};
}

void RunDecode(const PagedAttentionParams& params) {
  DeviceArray<int32_t> split_start(std::vector<int32_t>{0, 1, 2, 3});
  const DecodePlan plan = {
      .num_decodes = 3, .split_tokens = 128, .split_start = split_start.data(), .num_ctas = 2};
  ASSERT_EQ(Decode(params, plan, DType::kBF16, nullptr), 0);
}

void RunPrefillBy(PrefillKernel kernel, const PagedAttentionParams& params) {
  DeviceArray<PrefillItem> items(std::vector<PrefillItem>{{0, 0}, {1, 0}, {2, 0}});
  DeviceArray<int32_t> next_item(std::vector<int32_t>{0});
  const PrefillPlan plan = {
      .items = items.data(), .num_items = 3, .kernel = kernel, .next_item = next_item.data()};
  ASSERT_EQ(Prefill(params, plan, DType::kBF16, nullptr), 0);
}

// On warpgroup products where there is such a kernel.
void RunFastestPrefill(const PagedAttentionParams& params) {
  RunPrefillBy(PrefillKernel::kFastest, params);
}

// On a persistent grid where there is such a kernel.
void RunPersistentPrefill(const PagedAttentionParams& params) {
  DeviceInfo info;
  ASSERT_EQ(QueryDevice(0, &info), 0);
  const bool has_kernel =
      info.compute_capability == 90 && params.cache.layout.dtype == DType::kBF16;
  RunPrefillBy(has_kernel ? PrefillKernel::kPersistent : PrefillKernel::kFastest, params);
}

void RunMmaPrefill(const PagedAttentionParams& params) {
  RunPrefillBy(PrefillKernel::kMma, params);
}

void RunLineDecode(const PagedAttentionParams& params) {
  LineDecode decode(params, {.max_query_tokens = 8});
  decode.Run(params, DType::kBF16);
  ASSERT_EQ(Synchronize(nullptr), 0);
}

// The blocks of data's sequences at FarBlock.
class FarBlocks {
 public:
  FarBlocks(const AttentionData& data, LargeArray* pool)
      : block_tables_(MoveBlocks(data, pool)),
        cache_{pool->data(), kLargeBytes / data.layout().block_bytes(), data.layout()} {}

  PagedAttentionParams In(PagedAttentionParams params) const {
    params.cache = cache_;
    params.block_tables = block_tables_.data();
    return params;
  }

 private:
  static std::vector<BlockId> MoveBlocks(const AttentionData& data, LargeArray* pool) {
    const int64_t bytes = data.layout().block_bytes();
    std::vector<BlockId> block_tables = data.block_tables();
    for (BlockId& id : block_tables) {
      if (id != kNullBlockId) {
        const std::vector<uint8_t> block = BlockOf(data.pool(), id, bytes);
        id = FarBlock(id, data.num_blocks(), bytes);
        pool->Write(id * bytes, block);
      }
    }
    return block_tables;
  }

  DeviceArray<BlockId> block_tables_;
  KvCacheView cache_;
};

void ExpectSameAttentionFarAway(void (*run)(const PagedAttentionParams&), LargeArray* pool) {
  for (const int32_t head_dim : kHeadDims) {
    for (const DType cache_dtype : kCacheDTypes) {
      SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << ", " << NameOf(cache_dtype));
      const AttentionData data(ProblemOf(head_dim, cache_dtype));
      DeviceAttention near_device(data);
      run(near_device.params());
      ExpectClose(data, near_device.Out());

      DeviceAttention far_device(data);
      const FarBlocks blocks(data, pool);
      run(blocks.In(far_device.params()));

      EXPECT_EQ(far_device.Out(), near_device.Out());
    }
  }
}

TEST(LargePoolTest, DecodeReadsBlocksBehind4GiB) {
  LargeArray pool(kLargeBytes);
  if (!pool.why_not().empty()) {
    GTEST_SKIP() << pool.why_not();
  }
  ExpectSameAttentionFarAway(RunDecode, &pool);
  ExpectSameAttentionFarAway(RunLineDecode, &pool);
}

TEST(LargePoolTest, PrefillReadsBlocksBehind4GiB) {
  LargeArray pool(kLargeBytes);
  if (!pool.why_not().empty()) {
    GTEST_SKIP() << pool.why_not();
  }
  ExpectSameAttentionFarAway(RunMmaPrefill, &pool);
  ExpectSameAttentionFarAway(RunFastestPrefill, &pool);
  ExpectSameAttentionFarAway(RunPersistentPrefill, &pool);
}

// The tokens of the batch begin at a row of q and of the output that lies far behind the first.
void ExpectSameAttentionOfFarRows(void (*run)(const PagedAttentionParams&),
                                  LargeArray* q,
                                  LargeArray* out) {
  for (const int32_t head_dim : kHeadDims) {
    for (const DType cache_dtype : kCacheDTypes) {
      SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << ", " << NameOf(cache_dtype));
      const AttentionData data(ProblemOf(head_dim, cache_dtype));
      DeviceAttention near_device(data);
      run(near_device.params());

      const int64_t q_row_bytes = data.q_row_stride() * SizeOf(DType::kBF16);
      const int64_t out_row_bytes = static_cast<int64_t>(data.OutWidth()) * SizeOf(DType::kBF16);
      const int64_t first_row = kLargeBytes / out_row_bytes - data.num_tokens();
      q->Write(first_row * q_row_bytes, data.q());
      std::vector<int32_t> query_start = data.query_start();
      for (int32_t& row : query_start) {
        row += static_cast<int32_t>(first_row);
      }
      DeviceArray<int32_t> far_query_start(query_start);
      PagedAttentionParams params = near_device.params();
      params.query_start = far_query_start.data();
      params.q = q->data();
      params.out = out->data();
      run(params);

      const std::vector<uint16_t> expected = near_device.Out();
      EXPECT_EQ(out->Read<uint16_t>(first_row * out_row_bytes, expected.size()), expected);
    }
  }
}

TEST(LargePoolTest, DecodeReadsAndWritesRowsBehind4GiB) {
  LargeArray q(2 * kLargeBytes);  // its rows have keys and values as well
  LargeArray out(kLargeBytes);
  if (!q.why_not().empty() || !out.why_not().empty()) {
    GTEST_SKIP() << q.why_not() << out.why_not();
  }
  ExpectSameAttentionOfFarRows(RunDecode, &q, &out);
  ExpectSameAttentionOfFarRows(RunLineDecode, &q, &out);
}

TEST(LargePoolTest, PrefillReadsAndWritesRowsBehind4GiB) {
  LargeArray q(2 * kLargeBytes);  // its rows have keys and values as well
  LargeArray out(kLargeBytes);
  if (!q.why_not().empty() || !out.why_not().empty()) {
    GTEST_SKIP() << q.why_not() << out.why_not();
  }
  ExpectSameAttentionOfFarRows(RunMmaPrefill, &q, &out);
  ExpectSameAttentionOfFarRows(RunFastestPrefill, &q, &out);
  ExpectSameAttentionOfFarRows(RunPersistentPrefill, &q, &out);
}

TEST(LargePoolTest, MergedSplitsAreWrittenToRowsBehind4GiB) {
  LargeArray out(kLargeBytes);
  if (!out.why_not().empty()) {
    GTEST_SKIP() << out.why_not();
  }
  const AttentionData data({.sequences = {{.query_len = 1, .seq_len = 200, .key = 1}}});
  constexpr int32_t kSplits = 4;  // of 64
  DeviceAttention device(data);
  DeviceArray<int32_t> split_start(std::vector<int32_t>{0, kSplits});
  DeviceArray<float> partial_out(int64_t{kSplits} * 4 * 64);
  DeviceArray<float> partial_state(int64_t{kSplits} * 4 * 2);
  const DecodePlan plan = {.num_decodes = 1,
                           .split_tokens = 64,
                           .split_start = split_start.data(),
                           .partial_out = partial_out.data(),
                           .partial_state = partial_state.data(),
                           .num_ctas = 1};
  PagedAttentionParams params = device.params();
  ASSERT_EQ(Decode(params, plan, DType::kBF16, nullptr), 0);
  ExpectClose(data, device.Out());

  // With a q_row_stride of 0, every token reads the one row of q.
  const int64_t row_bytes = static_cast<int64_t>(data.OutWidth()) * SizeOf(DType::kBF16);
  const int64_t row = kLargeBytes / row_bytes - 1;
  DeviceArray<int32_t> query_start(
      std::vector<int32_t>{static_cast<int32_t>(row), static_cast<int32_t>(row + 1)});
  params.query_start = query_start.data();
  params.q_row_stride = 0;
  params.out = out.data();
  ASSERT_EQ(Decode(params, plan, DType::kBF16, nullptr), 0);

  EXPECT_EQ(out.Read<uint16_t>(row * row_bytes, data.OutWidth()), device.Out());
}

TEST(LargePoolTest, PrepareAttentionWritesBlocksBehind4GiB) {
  LargeArray pool(kLargeBytes);
  if (!pool.why_not().empty()) {
    GTEST_SKIP() << pool.why_not();
  }
  constexpr int32_t kBlockSize = 16;
  constexpr int32_t kHeads = 2;
  constexpr int32_t kBlocks = 4;
  for (const int32_t head_dim : kHeadDims) {
    for (const DType cache_dtype : kCacheDTypes) {
      SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << ", " << NameOf(cache_dtype));
      const KvCacheLayout layout =
          SwizzledRows({AttentionData::kNumLayers, kHeads, head_dim, kBlockSize, cache_dtype});
      // Every slot of all blocks, so that the blocks are equal as a whole.
      std::vector<int64_t> slots;
      std::vector<int64_t> far_slots;
      for (int32_t slot = 0; slot < kBlocks * kBlockSize; ++slot) {
        slots.push_back(slot);
        const BlockId far = FarBlock(slot / kBlockSize, kBlocks, layout.block_bytes());
        far_slots.push_back(int64_t{far} * kBlockSize + slot % kBlockSize);
      }
      const auto qkv = RandomElements<Bf16>(
          static_cast<int64_t>(slots.size()) * 3 * kHeads * head_dim, 21, 1.0F);
      DeviceArray<Bf16> near_qkv(qkv);
      DeviceArray<Bf16> far_qkv(qkv);
      DeviceArray<int64_t> near_mapping(slots);
      DeviceArray<int64_t> far_mapping(far_slots);
      DeviceArray<uint8_t> near_pool(layout.block_bytes() * kBlocks);
      PrepareAttentionParams params;
      params.num_tokens = static_cast<int32_t>(slots.size());
      params.num_heads = kHeads;
      params.layer = AttentionData::kLayer;
      params.qkv = near_qkv.data();
      params.slot_mapping = near_mapping.data();
      params.cache = {near_pool.data(), kBlocks, layout};
      ASSERT_EQ(PrepareAttention(params, DType::kBF16, nullptr), 0);
      params.qkv = far_qkv.data();
      params.slot_mapping = far_mapping.data();
      params.cache = {pool.data(), kLargeBytes / layout.block_bytes(), layout};

      ASSERT_EQ(PrepareAttention(params, DType::kBF16, nullptr), 0);

      const std::vector<uint8_t> expected = near_pool.ToHost();
      const int64_t layer_bytes = layout.layer_stride * SizeOf(cache_dtype);
      for (BlockId id = 0; id < kBlocks; ++id) {
        const std::vector<uint8_t> block = BlockOf(expected, id, layout.block_bytes());
        const BlockId far = FarBlock(id, kBlocks, layout.block_bytes());
        EXPECT_EQ(pool.Read<uint8_t>(far * layout.block_bytes() + layer_bytes,
                                     static_cast<size_t>(layer_bytes)),
                  std::vector<uint8_t>(block.begin() + layer_bytes, block.end()))
            << "block " << far;
      }
    }
  }
}

TEST(LargePoolTest, CopyBlocksCopiesFromAndToBehind4GiB) {
  LargeArray pool(kLargeBytes);
  if (!pool.why_not().empty()) {
    GTEST_SKIP() << pool.why_not();
  }
  constexpr int64_t kBlockBytes = 49168;
  constexpr auto kLast = static_cast<BlockId>(kLargeBytes / kBlockBytes - 1);
  const auto block_of = [](uint8_t byte) {
    return std::vector<uint8_t>(static_cast<size_t>(kBlockBytes), byte);
  };
  pool.Write(0, block_of(1));
  pool.Write(kLast * kBlockBytes, block_of(2));
  pool.Write(kLast / 4 * kBlockBytes, block_of(3));
  DeviceArray<BlockId> src(std::vector<BlockId>{0, kLast, kLast / 4});
  DeviceArray<BlockId> dst(std::vector<BlockId>{kLast - 1, 1, kLast - 2});

  ASSERT_EQ(
      CopyBlocks(
          {.cache = {pool.data(), kLast + 1, {.dtype = DType::kInt8, .block_stride = kBlockBytes}},
           .src = {src.data(), 3},
           .dst = {dst.data(), 3}},
          nullptr),
      0);

  const auto read = [&](BlockId id) {
    return pool.Read<uint8_t>(id * kBlockBytes, static_cast<size_t>(kBlockBytes));
  };
  EXPECT_EQ(read(kLast - 1), block_of(1));
  EXPECT_EQ(read(1), block_of(2));
  EXPECT_EQ(read(kLast - 2), block_of(3));
}

TEST(LargePoolTest, EmbedReadsRowsBehind4GiB) {
  LargeArray table(kLargeBytes);
  LargeArray position_table(kLargeBytes);
  if (!table.why_not().empty() || !position_table.why_not().empty()) {
    GTEST_SKIP() << table.why_not() << position_table.why_not();
  }
  constexpr int32_t kWidth = 64;
  constexpr int64_t kRowBytes = kWidth * 2;
  constexpr auto kLastRow = static_cast<int32_t>(kLargeBytes / kRowBytes - 1);
  const auto row = RandomElements<Bf16>(kWidth, 31, 1.0F);
  const auto position_row = RandomElements<Bf16>(kWidth, 32, 1.0F);
  const std::vector<int32_t> rows = {kLastRow, kLastRow / 4, kLastRow - 5};
  for (const int32_t id : rows) {
    table.Write(id * kRowBytes, row);
    position_table.Write(id * kRowBytes, position_row);
  }
  DeviceArray<TokenId> token_ids(rows);
  DeviceArray<int32_t> positions(rows);
  DeviceArray<float> out(static_cast<int64_t>(rows.size()) * kWidth);

  ASSERT_EQ(
      Embed({.num_tokens = static_cast<int64_t>(rows.size()),
             .token_ids = token_ids.data(),
             .table = {table.data(), WeightFormat::kBF16, kLastRow + 1, kWidth},
             .position_table = {position_table.data(), WeightFormat::kBF16, kLastRow + 1, kWidth},
             .positions = positions.data(),
             .out = out.data()},
            nullptr),
      0);

  std::vector<float> expected;
  for (size_t i = 0; i < rows.size() * kWidth; ++i) {
    expected.push_back(ToFloat(row[i % kWidth]) + ToFloat(position_row[i % kWidth]));
  }
  ExpectSameBits(out.ToHost(), expected);
}

TEST(LargePoolTest, SampleReadsAndAdjustsRowsBehind4GiB) {
  LargeArray logits(kLargeBytes);
  if (!logits.why_not().empty()) {
    GTEST_SKIP() << logits.why_not();
  }
  constexpr int32_t kVocabSize = 300;
  constexpr int64_t kRowStride = int64_t{5} << 29;  // more than 2^31 elements
  std::vector<float> row(kVocabSize, 0.0F);
  row[7] = 1.0F;
  logits.Write(0, row);
  row[7] = 0.0F;
  row[201] = 2.0F;
  row[77] = 3.0F;
  logits.Write(kRowStride * 4, row);
  std::vector<SampleRow> params(2);
  params[1].num_adjustments = 1;  // bans what the second row likes best
  DeviceArray<SampleRow> rows(params);
  DeviceArray<LogitAdjustment> adjustments(std::vector<LogitAdjustment>{{77, -INFINITY, 0, 0}});
  DeviceArray<TokenId> token_ids(2);
  DeviceArray<uint8_t> finite(2);

  ASSERT_EQ(Sample({.num_rows = 2,
                    .vocab_size = kVocabSize,
                    .row_stride = kRowStride,
                    .logits = static_cast<float*>(logits.data()),
                    .token_ids = token_ids.data(),
                    .finite = reinterpret_cast<bool*>(finite.data())},
                   {.rows = rows.data(), .adjustments = adjustments.data()},
                   nullptr),
            0);

  EXPECT_EQ(finite.ToHost(), (std::vector<uint8_t>{1, 1}));
  EXPECT_EQ(token_ids.ToHost(), (std::vector<TokenId>{7, 201}));
}

}  // namespace
}  // namespace quire::gpu
