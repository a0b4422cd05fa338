// Runs every kernel once or twice under TSan, at the smallest shapes that have several CTAs and
// reach all of its barriers. Under TSan a CTA of 128 threads takes a fifth of a second.
// planted_faults_test shows that TSan finds races in a kernel.
#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/device/element.h"
#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/quantize_rows.h"
#include "kernels/cuda/runtime.h"
#include "tests/kernels/cuda/attention_data.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/line_decode.h"
#include "tests/kernels/cuda/swizzled_rows.h"

namespace quire::gpu {
namespace {

template <typename T>
DeviceArray<T> Ones(int64_t count) {
  return DeviceArray<T>(std::vector<T>(static_cast<size_t>(count), FromFloat<T>(1.0F)));
}

template <typename T>
void ExpectAll(float expected, const DeviceArray<T>& values) {
  for (const T value : values.ToHost()) {
    ASSERT_NEAR(ToFloat(value), expected, 1e-3);
  }
}

TEST(RacesTest, Embed) {
  DeviceArray<TokenId> token_ids(std::vector<TokenId>{1, 1, 0});
  DeviceArray<int32_t> positions(std::vector<int32_t>{0, 1, 1});
  DeviceArray<Bf16> table = Ones<Bf16>(2 * 64);
  DeviceArray<float> position_table = Ones<float>(2 * 64);
  DeviceArray<float> out(3 * 64);

  ASSERT_EQ(Embed({.num_tokens = 3,
                   .token_ids = token_ids.data(),
                   .table = {table.data(), WeightFormat::kBF16, 2, 64},
                   .position_table = {position_table.data(), WeightFormat::kF32, 2, 64},
                   .positions = positions.data(),
                   .out = out.data()},
                  nullptr),
            0);

  ExpectAll(2.0F, out);
}

void ExpectNorm(NormKind kind, int32_t num_tokens, int32_t width) {
  const int64_t count = int64_t{num_tokens} * width;
  DeviceArray<float> residual = Ones<float>(count);
  DeviceArray<Bf16> delta = Ones<Bf16>(count);
  DeviceArray<float> weight = Ones<float>(width);
  DeviceArray<Bf16> out(count);
  DeviceArray<float> out_f32(count);

  ASSERT_EQ(Norm({.kind = kind,
                  .num_tokens = num_tokens,
                  .width = width,
                  .residual = residual.data(),
                  .delta = delta.data(),
                  .weight = weight.data(),
                  .out = out.data(),
                  .out_f32 = out_f32.data()},
                 DType::kBF16,
                 nullptr),
            0);

  ExpectAll(2.0F, residual);
  ExpectAll(kind == NormKind::kRmsNorm ? 1.0F : 0.0F, out);
  ExpectAll(kind == NormKind::kRmsNorm ? 1.0F : 0.0F, out_f32);
}

TEST(RacesTest, Norm) {
  ExpectNorm(NormKind::kRmsNorm, 2, 1000);
  ExpectNorm(NormKind::kLayerNorm, 2, 1000);
}

TEST(RacesTest, NormOfAWideRow) {
  ExpectNorm(NormKind::kRmsNorm, 1, 17000);
  ExpectNorm(NormKind::kLayerNorm, 1, 17000);
}

TEST(RacesTest, Activate) {
  DeviceArray<F16> in = Ones<F16>(2 * 2 * 200);
  DeviceArray<F16> out(2 * 200);

  ASSERT_EQ(Activate({.num_tokens = 2, .width = 200, .in = in.data(), .out = out.data()},
                     DType::kF16,
                     nullptr),
            0);

  ExpectAll(0.7311F, out);
}

void ExpectQuantizeRows(int32_t num_rows, int32_t width) {
  DeviceArray<Bf16> in = Ones<Bf16>(int64_t{num_rows} * width);
  DeviceArray<F8E4M3> out(in.size());
  DeviceArray<float> scales(num_rows);

  ASSERT_EQ(QuantizeRows({.num_rows = num_rows,
                          .width = width,
                          .in = in.data(),
                          .out = out.data(),
                          .scales = scales.data()},
                         nullptr),
            0);

  ExpectAll(448.0F, out);
  ExpectAll(1.0F / 448.0F, scales);
}

TEST(RacesTest, QuantizeRows) { ExpectQuantizeRows(2, 1008); }
TEST(RacesTest, QuantizeWideRows) { ExpectQuantizeRows(2, 16400); }

TEST(RacesTest, PrepareAttention) {
  constexpr int32_t kHeadDim = 80;
  constexpr int32_t kNumTokens = 3;
  const KvCacheLayout layout = SwizzledRows({.num_layers = 1,
                                             .num_kv_heads = 2,
                                             .head_dim = kHeadDim,
                                             .block_size_tokens = 16,
                                             .dtype = DType::kF8E4M3});
  DeviceArray<uint8_t> pool(2 * layout.block_bytes());
  DeviceArray<Bf16> qkv = Ones<Bf16>(kNumTokens * (4 + 2 * 2) * kHeadDim);
  DeviceArray<float> norm = Ones<float>(kHeadDim);
  DeviceArray<float> rope = Ones<float>(8 * kHeadDim / 2);
  DeviceArray<int32_t> positions(std::vector<int32_t>{3, 4, 5});
  DeviceArray<int64_t> slot_mapping(std::vector<int64_t>{15, 16, -1});

  ASSERT_EQ(PrepareAttention({.num_tokens = kNumTokens,
                              .num_heads = 4,
                              .qkv = qkv.data(),
                              .q_norm = norm.data(),
                              .k_norm = norm.data(),
                              .rope_cos = rope.data(),
                              .rope_sin = rope.data(),
                              .positions = positions.data(),
                              .slot_mapping = slot_mapping.data(),
                              .cache = {pool.data(), 2, layout}},
                             DType::kBF16,
                             nullptr),
            0);

  // The first value of slot 15 of block 0.
  const auto offset =
      static_cast<size_t>(layout.ValueOffset(0, 0, 0) + SwizzledElement(layout, 15, 0));
  EXPECT_EQ(pool.ToHost()[offset], 0x38);
}

// Sequences of three splits and of one, more items than CTAs.
void ExpectDecode(DType dtype, DType cache_dtype, int32_t head_dim) {
  constexpr int32_t kSplitTokens = 64;
  const AttentionData data({.dtype = dtype,
                            .cache_dtype = cache_dtype,
                            .head_dim = head_dim,
                            .num_heads = 2,
                            .num_kv_heads = 1,
                            .sequences = {{.seq_len = 140, .key = 1}, {.seq_len = 9, .key = 2}}});
  DeviceAttention device(data);
  DeviceArray<int32_t> split_start(3);
  DeviceArray<float> partial_out(4 * 2 * head_dim);
  DeviceArray<float> partial_state(4 * 2 * 2);
  const DecodePlan plan = {.num_decodes = 2,
                           .split_tokens = kSplitTokens,
                           .split_start = split_start.data(),
                           .partial_out = partial_out.data(),
                           .partial_state = partial_state.data(),
                           .num_ctas = 3};

  ASSERT_EQ(PlanDecode(device.params(), plan, split_start.data(), nullptr), 0);
  ASSERT_EQ(Decode(device.params(), plan, dtype, nullptr), 0);

  ExpectClose(data, device.Out());
}

TEST(RacesTest, DecodeOfHeadDim64) { ExpectDecode(DType::kBF16, DType::kBF16, 64); }
TEST(RacesTest, DecodeOfHeadDim112AndFloat8) { ExpectDecode(DType::kF16, DType::kF8E4M3, 112); }
TEST(RacesTest, DecodeOfHeadDim256) { ExpectDecode(DType::kF16, DType::kF16, 256); }

// Lines that three CTAs share, that of several queries with more stages than a ring has.
void ExpectLines(DType dtype, DType cache_dtype, int32_t head_dim, int32_t query_len) {
  DeviceInfo info;
  ASSERT_EQ(QueryDevice(0, &info), 0);
  if (info.compute_capability < 90) {
    GTEST_SKIP() << "needs compute capability 9.0";
  }
  const AttentionData data({.dtype = dtype,
                            .cache_dtype = cache_dtype,
                            .head_dim = head_dim,
                            .num_heads = 2,
                            .num_kv_heads = 1,
                            .sequences = {{.query_len = query_len, .seq_len = 460, .key = 1},
                                          {.seq_len = 9, .key = 2}}});
  DeviceAttention device(data);
  LineDecode decode(device.params(), {.num_ctas = 3, .max_query_tokens = query_len});

  decode.Run(device.params(), dtype);

  ExpectClose(data, device.Out());
  decode.ExpectNoArrivals();
}

TEST(RacesTest, DecodeByLinesOfHeadDim64) { ExpectLines(DType::kBF16, DType::kBF16, 64, 1); }
TEST(RacesTest, DecodeByLinesOfHeadDim112AndFloat8) {
  ExpectLines(DType::kF16, DType::kF8E4M3, 112, 9);
}
TEST(RacesTest, DecodeByLinesOfHeadDim128And64Rows) {
  ExpectLines(DType::kF16, DType::kF16, 128, 17);
}

// A chunk over earlier context: two items, of which the first has rows in both of its halves, and
// more tiles of keys than buffers.
void ExpectPrefill(PrefillKernel kernel, DType dtype, DType cache_dtype, int32_t head_dim) {
  DeviceInfo info;
  ASSERT_EQ(QueryDevice(0, &info), 0);
  if (kernel != PrefillKernel::kMma && info.compute_capability != 90) {
    GTEST_SKIP() << "needs compute capability 9.0";
  }
  const AttentionData data(
      {.dtype = dtype,
       .cache_dtype = cache_dtype,
       .head_dim = head_dim,
       .num_heads = 1,
       .num_kv_heads = 1,
       .sequences = {
           {.query_len = 130, .seq_len = kernel == PrefillKernel::kMma ? 135 : 390, .key = 1}}});
  DeviceAttention device(data);
  DeviceArray<PrefillItem> items(std::vector<PrefillItem>{{0, kPrefillRows}, {0, 0}});

  DeviceArray<int32_t> next_item(std::vector<int32_t>{0});
  const PrefillPlan plan = {.items = items.data(),
                            .num_items = 2,
                            .kernel = kernel,
                            .next_item = next_item.data(),
                            .num_ctas = 1};
  ASSERT_EQ(Prefill(device.params(), plan, dtype, nullptr), 0);

  ExpectClose(data, device.Out());
}

TEST(RacesTest, PrefillOfHeadDim64) {
  ExpectPrefill(PrefillKernel::kMma, DType::kBF16, DType::kBF16, 64);
}
TEST(RacesTest, PrefillOfHeadDim112AndFloat8) {
  ExpectPrefill(PrefillKernel::kMma, DType::kF16, DType::kF8E4M3, 112);
}
TEST(RacesTest, PrefillOfHeadDim256) {
  ExpectPrefill(PrefillKernel::kMma, DType::kF16, DType::kF16, 256);
}

TEST(RacesTest, WgmmaPrefillOfHeadDim64) {
  ExpectPrefill(PrefillKernel::kWgmma, DType::kBF16, DType::kBF16, 64);
}
TEST(RacesTest, WgmmaPrefillOfHeadDim256) {
  ExpectPrefill(PrefillKernel::kWgmma, DType::kF16, DType::kF16, 256);
}

TEST(RacesTest, PersistentPrefillOfHeadDim64) {
  ExpectPrefill(PrefillKernel::kPersistent, DType::kBF16, DType::kBF16, 64);
}
TEST(RacesTest, PersistentPrefillOfHeadDim112) {
  ExpectPrefill(PrefillKernel::kPersistent, DType::kF16, DType::kF16, 112);
}

TEST(RacesTest, CopyBlocks) {
  constexpr int64_t kBlockBytes = 40000;
  std::vector<uint8_t> bytes(4 * kBlockBytes);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(i / kBlockBytes);
  }
  DeviceArray<uint8_t> pool(bytes);
  DeviceArray<BlockId> src(std::vector<BlockId>{0, 1});
  DeviceArray<BlockId> dst(std::vector<BlockId>{3, 2});

  ASSERT_EQ(
      CopyBlocks({.cache = {pool.data(), 4, {.dtype = DType::kInt8, .block_stride = kBlockBytes}},
                  .src = {src.data(), 2},
                  .dst = {dst.data(), 2}},
                 nullptr),
      0);

  bytes = pool.ToHost();
  EXPECT_EQ(bytes[3 * kBlockBytes], 0);
  EXPECT_EQ(bytes[3 * kBlockBytes - 1], 1);
}

// Greedy; drawn plainly; top-k; a flat nucleus, which is longer than the list of candidates.
TEST(RacesTest, Sample) {
  constexpr int32_t kVocabSize = 3000;
  constexpr int32_t kNumRows = 4;
  constexpr int32_t kNumLogprobs = 3;
  std::vector<float> logits(kNumRows * kVocabSize);
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(MixBits(i) % 1000) * (i / kVocabSize == 3 ? 1e-4F : 1e-2F);
  }
  std::vector<SampleRow> rows(kNumRows);
  rows[0] = {.num_logprobs = kNumLogprobs, .num_adjustments = 2};
  rows[1] = {.temperature = 1.0F, .min_p = 0.01F, .num_logprobs = 0, .seed = 5};
  rows[2] = {.temperature = 0.7F, .top_p = 0.9F, .top_k = 20, .seed = 6};
  rows[3] = {.temperature = 1.0F, .top_p = 0.97F, .num_logprobs = kNumLogprobs, .seed = 7};
  DeviceArray<float> device_logits(logits);
  DeviceArray<SampleRow> device_rows(rows);
  DeviceArray<LogitAdjustment> adjustments(std::vector<LogitAdjustment>{
      {.token_id = 5, .bias = 100.0F}, {.token_id = 7, .output_count = 1, .in_context = 1}});
  DeviceArray<TokenId> token_ids(kNumRows);
  DeviceArray<float> logprobs(kNumRows);
  DeviceArray<uint8_t> finite(kNumRows);
  DeviceArray<SampledLogprob> top_logprobs(kNumRows * kNumLogprobs);

  ASSERT_EQ(Sample({.num_rows = kNumRows,
                    .vocab_size = kVocabSize,
                    .row_stride = kVocabSize,
                    .logits = device_logits.data(),
                    .token_ids = token_ids.data(),
                    .logprobs = logprobs.data(),
                    .finite = reinterpret_cast<bool*>(finite.data()),
                    .top_logprobs = top_logprobs.data(),
                    .top_logprobs_stride = kNumLogprobs},
                   {.rows = device_rows.data(), .adjustments = adjustments.data()},
                   nullptr),
            0);

  EXPECT_EQ(finite.ToHost(), std::vector<uint8_t>(kNumRows, 1));
  EXPECT_EQ(token_ids.ToHost()[0], 5);
  EXPECT_EQ(top_logprobs.ToHost()[0].token_id,
            std::max_element(logits.begin(), logits.begin() + kVocabSize) - logits.begin());
}

}  // namespace
}  // namespace quire::gpu
