#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/gpu_ops.h"
#include "kernels/reference/element.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/swizzled_rows.h"

namespace quire::gpu {
namespace {

constexpr int32_t kNumLayers = 2;
constexpr int32_t kLayer = 1;
constexpr int32_t kMaxPositions = 300;
constexpr int32_t kNumBlocks = 13;
constexpr float kEps = 0.1F;  // large, so that leaving it out shows

struct Shape {
  int32_t num_heads = 3;
  int32_t num_kv_heads = 2;
  int32_t head_dim = 64;
  int32_t block_size_tokens = 16;
  DType dtype = DType::kBF16;
  DType cache_dtype = DType::kBF16;
  bool q_norm = true;
  bool k_norm = true;
  bool rope = true;
  float k_scale = 1.0F;
  float v_scale = 1.0F;

  int32_t row_width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
};

std::string Describe(const Shape& s) {
  return "heads " + std::to_string(s.num_heads) + "/" + std::to_string(s.num_kv_heads) + " dim " +
         std::to_string(s.head_dim) + " " + std::string(NameOf(s.dtype)) + " cache " +
         std::string(NameOf(s.cache_dtype)) + (s.q_norm ? " q_norm" : "") +
         (s.k_norm ? " k_norm" : "") + (s.rope ? " rope" : "");
}

uint16_t Bits16(DType dtype, float value) {
  uint16_t bits = 0;
  reference::StoreElement(&bits, dtype, 0, value);
  return bits;
}

// A key or a value in the cache.
struct CachedRow {
  int64_t slot = 0;
  int32_t kv_head = 0;
  bool is_value = false;
};

// Inputs of PrepareAttention; it writes qkv and pool in place.
struct Step {
  Shape shape;
  KvCacheLayout layout;
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
  std::vector<uint16_t> qkv;  // [tokens, row_width]
  std::vector<uint8_t> pool;

  int32_t num_tokens() const { return static_cast<int32_t>(slots.size()); }

  // The place of an element in `pool`.
  int64_t PlaceOf(const CachedRow& row, int64_t dim) const {
    const auto block = static_cast<BlockId>(row.slot / layout.block_size_tokens);
    const int64_t head = row.is_value ? layout.ValueOffset(block, kLayer, row.kv_head)
                                      : layout.KeyOffset(block, kLayer, row.kv_head);
    return head + SwizzledElement(layout, row.slot % layout.block_size_tokens, dim);
  }
  float CachedAt(const CachedRow& row, int64_t dim) const {
    return reference::LoadElement(pool.data(), layout.dtype, PlaceOf(row, dim));
  }
  const uint16_t* Row(int32_t token) const {
    return &qkv[static_cast<size_t>(token) * static_cast<size_t>(shape.row_width())];
  }
};

std::vector<float> Numbers(size_t count, uint32_t seed, float low, float high) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> numbers(count);
  for (float& number : numbers) {
    number = uniform(generator);
  }
  return numbers;
}

std::vector<float> MakeRopeTable(int32_t head_dim, bool sine) {
  const int32_t half = head_dim / 2;
  std::vector<float> table;
  for (int32_t position = 0; position < kMaxPositions; ++position) {
    for (int32_t d = 0; d < half; ++d) {
      double angle = position * std::pow(10000.0, -static_cast<double>(d) / half);
      table.push_back(static_cast<float>(sine ? std::sin(angle) : std::cos(angle)));
    }
  }
  return table;
}

// Tables are made once, because each test asks for them for every head.
const std::vector<float>& RopeTable(int32_t head_dim, bool sine) {
  static std::map<std::pair<int32_t, bool>, std::vector<float>> tables;
  std::vector<float>& table = tables[{head_dim, sine}];
  if (table.empty()) {
    table = MakeRopeTable(head_dim, sine);
  }
  return table;
}

// Tokens of several sequences: positions and slots in no particular order, no slot twice.
Step MakeStep(const Shape& shape, int32_t num_tokens) {
  Step step;
  step.shape = shape;
  step.layout = SwizzledRows(
      {kNumLayers, shape.num_kv_heads, shape.head_dim, shape.block_size_tokens, shape.cache_dtype});
  for (int32_t t = 0; t < num_tokens; ++t) {
    step.positions.push_back(t * 37 % kMaxPositions);
    step.slots.push_back((t * 29 + 3) % (kNumBlocks * shape.block_size_tokens - 1));
  }
  const auto count = static_cast<size_t>(num_tokens) * static_cast<size_t>(shape.row_width());
  for (float number : Numbers(count, 5, -3.0F, 3.0F)) {
    step.qkv.push_back(Bits16(shape.dtype, number));
  }
  return step;
}

std::vector<float> QNorm(const Shape& shape) {
  return Numbers(static_cast<size_t>(shape.head_dim), 6, 0.5F, 1.5F);
}
std::vector<float> KNorm(const Shape& shape) {
  return Numbers(static_cast<size_t>(shape.head_dim), 7, 0.5F, 1.5F);
}

// The params, without the arrays.
PrepareAttentionParams ParamsOf(const Step& step) {
  return {.num_tokens = step.num_tokens(),
          .num_heads = step.shape.num_heads,
          .layer = kLayer,
          .norm_eps = kEps,
          .cache = {nullptr, kNumBlocks, step.layout}};
}

int RunStep(Step& step) {
  const Shape& shape = step.shape;
  DeviceArray<float> cos(RopeTable(shape.head_dim, false));
  DeviceArray<float> sin(RopeTable(shape.head_dim, true));
  DeviceArray<float> q_norm(QNorm(shape));
  DeviceArray<float> k_norm(KNorm(shape));
  DeviceArray<int32_t> positions(step.positions);
  DeviceArray<int64_t> slots(step.slots);
  DeviceArray<uint16_t> qkv(step.qkv);
  DeviceArray<uint8_t> pool(step.layout.block_bytes() * kNumBlocks);

  PrepareAttentionParams params = ParamsOf(step);
  params.qkv = qkv.data();
  params.q_norm = shape.q_norm ? q_norm.data() : nullptr;
  params.k_norm = shape.k_norm ? k_norm.data() : nullptr;
  params.rope_cos = shape.rope ? cos.data() : nullptr;
  params.rope_sin = shape.rope ? sin.data() : nullptr;
  params.positions = positions.data();
  params.slot_mapping = slots.data();
  params.cache.base = pool.data();
  params.k_scale = shape.k_scale;
  params.v_scale = shape.v_scale;
  const int error = PrepareAttention(params, shape.dtype, nullptr);

  step.qkv = qkv.ToHost();
  step.pool = pool.ToHost();
  return error;
}

// The reference's result for a step in fp32, neither rounded to a type nor scaled.
struct Expected {
  std::vector<float> qkv;
  KvCacheLayout layout;
  std::vector<float> pool;

  // [head_dim]
  const float* Row(const CachedRow& row) const {
    const auto block = static_cast<BlockId>(row.slot / layout.block_size_tokens);
    const int64_t head = row.is_value ? layout.ValueOffset(block, kLayer, row.kv_head)
                                      : layout.KeyOffset(block, kLayer, row.kv_head);
    return &pool[static_cast<size_t>(head + row.slot % layout.block_size_tokens * layout.head_dim)];
  }
};

Expected ReferenceOf(const Step& step) {
  const Shape& shape = step.shape;
  const std::vector<float> q_norm = QNorm(shape);
  const std::vector<float> k_norm = KNorm(shape);
  Expected expected;
  for (size_t i = 0; i < step.qkv.size(); ++i) {
    expected.qkv.push_back(
        reference::LoadElement(step.qkv.data(), shape.dtype, static_cast<int64_t>(i)));
  }
  expected.layout = TokenMajorKeys(
      {kNumLayers, shape.num_kv_heads, shape.head_dim, shape.block_size_tokens, DType::kF32});
  expected.pool.resize(static_cast<size_t>(expected.layout.block_stride * kNumBlocks));

  PrepareAttentionParams params = ParamsOf(step);
  params.qkv = expected.qkv.data();
  params.q_norm = shape.q_norm ? q_norm.data() : nullptr;
  params.k_norm = shape.k_norm ? k_norm.data() : nullptr;
  params.rope_cos = shape.rope ? RopeTable(shape.head_dim, false).data() : nullptr;
  params.rope_sin = shape.rope ? RopeTable(shape.head_dim, true).data() : nullptr;
  params.positions = step.positions.data();
  params.slot_mapping = step.slots.data();
  params.cache = {expected.pool.data(), kNumBlocks, expected.layout};
  reference::PrepareAttention(params);
  return expected;
}

// Every number is one rounding of dtype away from the exact one, whose own error in fp32 is a few
// 1e-7 of the row's largest.
void ExpectRounded(const std::vector<float>& actual,
                   const float* expected,
                   DType dtype,
                   float scale,
                   const std::string& what) {
  const bool is_f8 = dtype == DType::kF8E4M3;
  const double relative = is_f8 ? 0x1p-4 : dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
  const double smallest = is_f8 ? 0x1p-10 * scale : dtype == DType::kF16 ? 0x1p-25 : 0.0;
  double largest = 0.0;
  for (size_t d = 0; d < actual.size(); ++d) {
    largest = std::max(largest, std::abs(double{expected[d]}));
  }
  for (size_t d = 0; d < actual.size(); ++d) {
    const double exact = expected[d];
    const double bound = 1.001 * (relative * std::abs(exact) + smallest) + 2e-6 * largest;
    ASSERT_LE(std::abs(double{actual[d]} - exact), bound) << what << ", dim " << d;
  }
}

std::vector<float> QueryOf(const Step& step, int32_t token, int32_t head) {
  std::vector<float> q;
  for (int32_t d = 0; d < step.shape.head_dim; ++d) {
    q.push_back(reference::LoadElement(
        step.Row(token), step.shape.dtype, int64_t{head} * step.shape.head_dim + d));
  }
  return q;
}

std::vector<float> CachedHead(const Step& step, const CachedRow& row, float scale) {
  std::vector<float> head;
  for (int32_t d = 0; d < step.shape.head_dim; ++d) {
    head.push_back(step.CachedAt(row, d) * scale);
  }
  return head;
}

void ExpectMatchesReference(const Step& before) {
  const Shape& shape = before.shape;
  Step after = before;
  ASSERT_EQ(RunStep(after), 0) << Describe(shape);

  const Expected expected = ReferenceOf(before);
  const bool is_f8 = shape.cache_dtype == DType::kF8E4M3;
  const float k_scale = is_f8 ? shape.k_scale : 1.0F;
  const float v_scale = is_f8 ? shape.v_scale : 1.0F;
  for (int32_t t = 0; t < before.num_tokens(); ++t) {
    const int64_t slot = before.slots[static_cast<size_t>(t)];
    const std::string where = Describe(shape) + ", token " + std::to_string(t);
    for (int32_t h = 0; h < shape.num_heads; ++h) {
      const int64_t at = int64_t{t} * shape.row_width() + int64_t{h} * shape.head_dim;
      const float* q = &expected.qkv[static_cast<size_t>(at)];
      ExpectRounded(QueryOf(after, t, h), q, shape.dtype, 1.0F, where + ", q");
    }
    for (int32_t h = 0; h < shape.num_kv_heads; ++h) {
      const CachedRow key = {.slot = slot, .kv_head = h};
      const CachedRow value = {.slot = slot, .kv_head = h, .is_value = true};
      ExpectRounded(CachedHead(after, key, k_scale),
                    expected.Row(key),
                    shape.cache_dtype,
                    k_scale,
                    where + ", k");
      const float* v = expected.Row(value);
      const std::vector<float> stored = CachedHead(after, value, v_scale);
      if (is_f8) {
        ExpectRounded(stored, v, shape.cache_dtype, v_scale, where + ", v");
      } else {
        ASSERT_EQ(stored, std::vector<float>(v, v + shape.head_dim)) << where << ", v";
      }
    }
  }
}

// The pool with the tokens' keys and values poisoned again.
std::vector<uint8_t> PoolWithoutTokens(const Step& step) {
  std::vector<uint8_t> pool = step.pool;
  const auto size = static_cast<size_t>(SizeOf(step.layout.dtype));
  for (int64_t slot : step.slots) {
    for (int32_t head = 0; slot >= 0 && head < step.shape.num_kv_heads; ++head) {
      for (const bool is_value : {false, true}) {
        for (int32_t d = 0; d < step.shape.head_dim; ++d) {
          const int64_t place = step.PlaceOf({slot, head, is_value}, d);
          std::memset(&pool[static_cast<size_t>(place) * size], 0xFF, size);
        }
      }
    }
  }
  return pool;
}

// The part of a step that concerns one of its tokens.
Step Alone(const Step& step, int32_t token) {
  Step alone;
  alone.shape = step.shape;
  alone.layout = step.layout;
  alone.positions.push_back(step.positions[static_cast<size_t>(token)]);
  alone.slots.push_back(step.slots[static_cast<size_t>(token)]);
  alone.qkv.assign(step.Row(token), step.Row(token) + step.shape.row_width());
  return alone;
}

// Tokens in the first and last slots of blocks and of the pool, at the first and last positions.
Step StepAtTheEndsOfBlocks(const Shape& shape) {
  const int64_t block_size = shape.block_size_tokens;
  const std::vector<int64_t> slots = {0,
                                      block_size - 1,
                                      block_size,
                                      block_size + 1,
                                      2 * block_size - 1,
                                      kNumBlocks * block_size - 1};
  Step step = MakeStep(shape, static_cast<int32_t>(slots.size()));
  step.slots = slots;
  step.positions.front() = kMaxPositions - 1;
  step.positions.back() = 0;
  return step;
}

// ---- The layout ---------------------------------------------------------------------------------

TEST(SwizzledRowsTest, EveryChunkHasAPlaceOfItsOwnWhereTheTestsExpectIt) {
  for (int32_t head_dim : {64, 80, 96, 112, 128, 256}) {
    for (DType dtype : {DType::kBF16, DType::kF8E4M3}) {
      for (int32_t block_size : {8, 16, 128}) {
        const KvCacheLayout layout = SwizzledRows({1, 1, head_dim, block_size, dtype});
        const auto size = static_cast<int32_t>(SizeOf(dtype));
        const int32_t row_chunks = head_dim * size / 16;
        std::set<int32_t> places;
        for (int32_t slot = 0; slot < block_size; ++slot) {
          for (int32_t chunk = 0; chunk < row_chunks; ++chunk) {
            const int32_t place = KvChunkOffset(row_chunks, block_size, slot, chunk);
            EXPECT_EQ(place, SwizzledElement(layout, slot, int64_t{chunk} * 16 / size) * size);
            EXPECT_GE(place, 0);
            EXPECT_LT(place, layout.value_offset * size);
            places.insert(place);
          }
        }
        EXPECT_EQ(places.size(), static_cast<size_t>(block_size * row_chunks));
      }
    }
  }
}

// ldmatrix reads a chunk of 8 rows at once, and 32 banks of 4 bytes make 8 groups of 16 bytes.
TEST(SwizzledRowsTest, AChunkOf8SlotsLiesIn8GroupsOfBanks) {
  for (int32_t row_chunks : {4, 5, 6, 7, 8, 10, 12, 14, 16, 32}) {
    for (int32_t chunk = 0; chunk < row_chunks; ++chunk) {
      std::set<int32_t> groups;
      for (int32_t slot = 8; slot < 16; ++slot) {
        groups.insert(KvChunkOffset(row_chunks, 16, slot, chunk) / 16 % 8);
      }
      EXPECT_EQ(groups.size(), 8U) << row_chunks << " chunks, chunk " << chunk;
    }
  }
}

// ---- The operation ------------------------------------------------------------------------------

TEST(PrepareAttentionTest, MatchesReferenceForEveryHeadDimTypeAndBlockSize) {
  for (int32_t head_dim : {64, 80, 96, 112, 128, 256}) {
    for (DType dtype : {DType::kBF16, DType::kF16}) {
      for (DType cache_dtype : {dtype, DType::kF8E4M3}) {
        for (int32_t block_size : {8, 16, 32, 64, 128}) {
          Shape shape;
          shape.head_dim = head_dim;
          shape.dtype = dtype;
          shape.cache_dtype = cache_dtype;
          shape.block_size_tokens = block_size;
          shape.k_scale = 0.037F;
          shape.v_scale = 0.011F;

          ExpectMatchesReference(StepAtTheEndsOfBlocks(shape));
        }
      }
    }
  }
}

// Gaps between keys and values, heads, layers and blocks.
TEST(PrepareAttentionTest, StridesComeFromTheLayout) {
  for (DType cache_dtype : {DType::kBF16, DType::kF8E4M3}) {
    Shape shape;
    shape.cache_dtype = cache_dtype;
    Step step = MakeStep(shape, 9);
    KvCacheLayout& layout = step.layout;
    layout.value_offset += 16;
    layout.head_stride += 48;
    layout.layer_stride = layout.head_stride * shape.num_kv_heads + 80;
    layout.block_stride = kNumLayers * layout.layer_stride + 2 * shape.head_dim;

    ExpectMatchesReference(step);
  }
}

// Boundaries of CTAs lie within tokens, and boundaries of tokens within CTAs.
TEST(PrepareAttentionTest, MatchesReferenceForEveryGroup) {
  for (int32_t head_dim : {64, 80, 256}) {
    for (int32_t group = 1; group <= 16; ++group) {
      Shape shape;
      shape.head_dim = head_dim;
      shape.num_kv_heads = 1 + group % 2;
      shape.num_heads = group * shape.num_kv_heads;

      ExpectMatchesReference(MakeStep(shape, 3));
    }
  }
}

TEST(PrepareAttentionTest, NormsAndRotationAreOptionalOneByOne) {
  for (int32_t head_dim : {64, 80}) {
    for (int choice = 0; choice < 8; ++choice) {
      Shape shape;
      shape.head_dim = head_dim;
      shape.dtype = DType::kF16;
      shape.cache_dtype = DType::kF16;
      shape.q_norm = (choice & 1) != 0;
      shape.k_norm = (choice & 2) != 0;
      shape.rope = (choice & 4) != 0;

      ExpectMatchesReference(MakeStep(shape, 3));
    }
  }
}

TEST(PrepareAttentionTest, MatchesReferenceForEveryBlockSizeAndShareOfHeads) {
  for (int32_t block_size : {8, 16, 32, 64, 128}) {
    Shape shape;
    shape.block_size_tokens = block_size;
    shape.num_heads = block_size / 8;
    shape.num_kv_heads = 1 + block_size / 64;

    ExpectMatchesReference(MakeStep(shape, 9));
  }
}

TEST(PrepareAttentionTest, WritesTheTokensSlotsAndNothingElse) {
  for (int32_t head_dim : {80, 128}) {
    for (DType cache_dtype : {DType::kBF16, DType::kF8E4M3}) {
      Shape shape;
      shape.head_dim = head_dim;
      shape.cache_dtype = cache_dtype;
      const Step before = MakeStep(shape, 11);

      Step after = before;
      ASSERT_EQ(RunStep(after), 0);

      EXPECT_EQ(PoolWithoutTokens(after), std::vector<uint8_t>(after.pool.size(), 0xFF));
      for (int32_t t = 0; t < before.num_tokens(); ++t) {
        const int32_t q_width = shape.num_heads * head_dim;
        EXPECT_TRUE(std::equal(
            before.Row(t) + q_width, before.Row(t) + shape.row_width(), after.Row(t) + q_width))
            << "k or v of token " << t << " changed in qkv";
      }
    }
  }
}

TEST(PrepareAttentionTest, PaddingIsNotWrittenAndReadsNoPosition) {
  Shape shape;
  Step before = MakeStep(shape, 8);
  for (size_t t : {size_t{0}, size_t{3}, size_t{7}}) {
    before.slots[t] = -1;
    before.positions[t] = std::numeric_limits<int32_t>::max();
  }
  std::fill_n(before.qkv.begin(), shape.row_width(), uint16_t{0xFFFF});

  Step after = before;
  ASSERT_EQ(RunStep(after), 0);

  EXPECT_EQ(PoolWithoutTokens(after), std::vector<uint8_t>(after.pool.size(), 0xFF));
  for (int32_t t : {1, 2, 4, 5, 6}) {
    Step alone = Alone(before, t);
    ASSERT_EQ(RunStep(alone), 0);
    EXPECT_EQ(QueryOf(after, t, 2), QueryOf(alone, 0, 2)) << "beside padding, token " << t;
  }
}

TEST(PrepareAttentionTest, ATokenAloneHasTheBitsItHasInABatch) {
  for (int32_t head_dim : {64, 112, 256}) {
    for (DType cache_dtype : {DType::kBF16, DType::kF8E4M3}) {
      Shape shape;
      shape.head_dim = head_dim;
      shape.num_heads = 5;
      shape.num_kv_heads = 1;
      shape.cache_dtype = cache_dtype;
      const Step before = MakeStep(shape, 41);
      Step together = before;
      ASSERT_EQ(RunStep(together), 0);

      for (int32_t t : {0, 1, 22, 40}) {
        Step alone = Alone(before, t);
        ASSERT_EQ(RunStep(alone), 0);

        EXPECT_TRUE(std::equal(alone.qkv.begin(), alone.qkv.end(), together.Row(t)));
        const int64_t slot = alone.slots[0];
        for (const bool is_value : {false, true}) {
          const CachedRow row = {.slot = slot, .is_value = is_value};
          EXPECT_EQ(CachedHead(alone, row, 1.0F), CachedHead(together, row, 1.0F));
        }
      }
    }
  }
}

TEST(PrepareAttentionTest, E4M3TakesTheNearestNumberAndTheLargestForWhatIsTooLarge) {
  // Pairs of a given number and its stored form: ties to even in both directions, subnormal
  // numbers, saturation.
  const std::vector<std::pair<float, float>> cases = {{0.0F, 0.0F},
                                                      {1.0F, 1.0F},
                                                      {1.0625F, 1.0F},
                                                      {1.1875F, 1.25F},
                                                      {1.09375F, 1.125F},
                                                      {-1.0625F, -1.0F},
                                                      {448.0F, 448.0F},
                                                      {464.0F, 448.0F},
                                                      {466.0F, 448.0F},
                                                      {-1000.0F, -448.0F},
                                                      {60000.0F, 448.0F},
                                                      {0x1p-6F, 0x1p-6F},
                                                      {0x1p-9F, 0x1p-9F},
                                                      {0x1p-10F, 0.0F},
                                                      {0x3p-10F, 0x1p-8F},
                                                      {0x1.8p-10F, 0x1p-9F},
                                                      {-0x5p-10F, -0x1p-8F},
                                                      {0x1.fp-7F, 0x1p-6F}};
  Shape shape;
  shape.num_heads = 1;
  shape.num_kv_heads = 1;
  shape.dtype = DType::kBF16;
  shape.cache_dtype = DType::kF8E4M3;
  shape.q_norm = shape.k_norm = shape.rope = false;
  Step step = MakeStep(shape, 1);
  const auto head_dim = static_cast<size_t>(shape.head_dim);
  for (size_t i = 0; i < cases.size(); ++i) {
    step.qkv[head_dim + i] = step.qkv[2 * head_dim + i] = Bits16(DType::kBF16, cases[i].first);
  }
  constexpr uint16_t kInfinity = 0x7F80;
  constexpr uint16_t kNaN = 0x7FC0;
  step.qkv[2 * head_dim - 2] = step.qkv[3 * head_dim - 2] = kInfinity;
  step.qkv[2 * head_dim - 1] = step.qkv[3 * head_dim - 1] = kNaN;

  ASSERT_EQ(RunStep(step), 0);

  for (const bool is_value : {false, true}) {
    const CachedRow row = {.slot = step.slots[0], .is_value = is_value};
    for (size_t i = 0; i < cases.size(); ++i) {
      EXPECT_EQ(step.CachedAt(row, static_cast<int64_t>(i)), cases[i].second)
          << "of " << cases[i].first;
    }
    EXPECT_EQ(step.CachedAt(row, shape.head_dim - 2), 448.0F);
    EXPECT_TRUE(std::isnan(step.CachedAt(row, shape.head_dim - 1)));
  }
}

TEST(PrepareAttentionTest, NoTokensMeansNoChange) {
  Step step = MakeStep(Shape(), 0);

  ASSERT_EQ(RunStep(step), 0);

  EXPECT_EQ(step.pool, std::vector<uint8_t>(step.pool.size(), 0xFF));
}

TEST(PrepareAttentionTest, RefusesWhatHasNoKernel) {
  const Shape good;
  std::vector<Shape> shapes(4, good);
  shapes[0].head_dim = 72;
  shapes[1].dtype = DType::kF32;
  shapes[2].cache_dtype = DType::kF16;
  shapes[3].block_size_tokens = 24;
  for (const Shape& shape : shapes) {
    Step step = MakeStep(good, 1);
    step.shape = shape;
    step.layout = SwizzledRows({kNumLayers,
                                shape.num_kv_heads,
                                shape.head_dim,
                                shape.block_size_tokens,
                                shape.cache_dtype});
    EXPECT_EQ(RunStep(step), kUnsupported) << Describe(shape);
  }
  Step step = MakeStep(good, 1);
  step.layout = TokenMajorKeys({kNumLayers, 2, 64, 16, DType::kBF16});
  EXPECT_EQ(RunStep(step), kUnsupported) << "rows that are not swizzled";
}

}  // namespace
}  // namespace quire::gpu
