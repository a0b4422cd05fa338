#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/reference/element.h"
#include "kernels/reference/reference_backend.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/cpu_backends.h"

namespace quire {
namespace {

constexpr int32_t kNumLayers = 2;
constexpr int32_t kLayer = 1;
constexpr int32_t kMaxPositions = 600;
constexpr int64_t kNumBlocks = 40;

struct Shape {
  int32_t num_heads = 4;
  int32_t num_kv_heads = 2;
  int32_t head_dim = 64;
  int32_t block_size_tokens = 16;
  DType dtype = DType::kF32;
  bool norm = true;
  bool rope = true;

  int32_t row_width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
};

// Inputs of PrepareAttention; it writes qkv and pool in place.
struct Step {
  Shape shape;
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
  std::vector<float> qkv;  // [tokens, row_width]
  std::vector<unsigned char> pool;
  KvCacheLayout layout;
};

std::vector<float> Numbers(size_t count, uint64_t seed, float scale) {
  std::vector<float> numbers(count);
  for (size_t i = 0; i < count; ++i) {
    numbers[i] = scale * NumberFor(seed, i, 0, 0);
  }
  return numbers;
}

std::vector<float> RopeTable(const Shape& shape, bool sine) {
  int32_t half = shape.head_dim / 2;
  std::vector<float> table;
  for (int32_t position = 0; position < kMaxPositions; ++position) {
    for (int32_t d = 0; d < half; ++d) {
      double angle = position * std::pow(10000.0, -static_cast<double>(d) / half);
      table.push_back(static_cast<float>(sine ? std::sin(angle) : std::cos(angle)));
    }
  }
  return table;
}

// Tokens of several sequences: positions and slots in no particular order, no slot twice.
Step MakeStep(const Shape& shape, int32_t num_tokens) {
  Step step;
  step.shape = shape;
  for (int32_t t = 0; t < num_tokens; ++t) {
    step.positions.push_back(t * 37 % kMaxPositions);
    step.slots.push_back((t * 29 + 3) % (kNumBlocks * shape.block_size_tokens - 1));
  }
  step.qkv = Numbers(static_cast<size_t>(num_tokens * shape.row_width()), 5, 2.0F);
  return step;
}

void RunStep(KernelBackend& backend, Step& step) {
  const Shape& shape = step.shape;
  step.layout = backend.LayoutFor(
      {kNumLayers, shape.num_kv_heads, shape.head_dim, shape.block_size_tokens, shape.dtype});
  step.pool.assign(static_cast<size_t>(step.layout.block_bytes() * kNumBlocks), 0xFF);
  std::vector<float> cos = RopeTable(shape, false);
  std::vector<float> sin = RopeTable(shape, true);
  std::vector<float> q_norm = Numbers(static_cast<size_t>(shape.head_dim), 6, 1.0F);
  std::vector<float> k_norm = Numbers(static_cast<size_t>(shape.head_dim), 7, 1.0F);

  PrepareAttentionParams params;
  params.num_tokens = static_cast<int32_t>(step.positions.size());
  params.num_heads = shape.num_heads;
  params.layer = kLayer;
  params.qkv = step.qkv.data();
  params.q_norm = shape.norm ? q_norm.data() : nullptr;
  params.k_norm = shape.norm ? k_norm.data() : nullptr;
  params.norm_eps = 1e-6F;
  params.rope_cos = shape.rope ? cos.data() : nullptr;
  params.rope_sin = shape.rope ? sin.data() : nullptr;
  params.positions = step.positions.data();
  params.slot_mapping = step.slots.data();
  params.cache = {step.pool.data(), kNumBlocks, step.layout};
  backend.PrepareAttention(params);
}

// Queries of all tokens.
std::vector<float> QueriesOf(const Step& step) {
  std::vector<float> q;
  auto width = static_cast<size_t>(step.shape.row_width());
  auto q_width = static_cast<size_t>(step.shape.num_heads * step.shape.head_dim);
  for (size_t t = 0; t < step.positions.size(); ++t) {
    auto row = step.qkv.begin() + static_cast<std::ptrdiff_t>(t * width);
    q.insert(q.end(), row, row + static_cast<std::ptrdiff_t>(q_width));
  }
  return q;
}

constexpr DType kAllTypes[] = {
    DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kInt8};

// Byte of the pool where the scale of a slot's key or value lies.
int64_t ScaleByte(
    const KvCacheLayout& layout, BlockId block, int32_t head, int64_t slot, bool of_value) {
  return layout.KeyOffset(block, kLayer, head) +
         (of_value ? layout.value_scale_offset : layout.key_scale_offset) +
         slot * int64_t{sizeof(float)};
}

// 1 where there are no scales.
float ScaleAt(const Step& step, BlockId block, int32_t head, int64_t slot, bool of_value) {
  float scale = 1.0F;
  if (step.layout.has_scales()) {
    std::memcpy(&scale,
                step.pool.data() + ScaleByte(step.layout, block, head, slot, of_value),
                sizeof(scale));
  }
  return scale;
}

// Keys, or values, of all tokens, read from the cache.
std::vector<float> CachedOf(const Step& step, bool values) {
  std::vector<float> numbers;
  const KvCacheLayout& layout = step.layout;
  for (int64_t slot : step.slots) {
    auto block = static_cast<BlockId>(slot / layout.block_size_tokens);
    int64_t offset = slot % layout.block_size_tokens;
    for (int32_t head = 0; head < layout.num_kv_heads; ++head) {
      int64_t at = values
                       ? layout.ValueOffset(block, kLayer, head) + offset * layout.value_slot_stride
                       : layout.KeyOffset(block, kLayer, head) + offset * layout.key_slot_stride;
      int64_t stride = values ? 1 : layout.key_dim_stride;
      float scale = ScaleAt(step, block, head, offset, values);
      for (int32_t d = 0; d < layout.head_dim; ++d) {
        numbers.push_back(scale *
                          reference::LoadElement(step.pool.data(), layout.dtype, at + d * stride));
      }
    }
  }
  return numbers;
}

// The pool with the tokens' keys and values poisoned again.
std::vector<unsigned char> PoolWithoutTokens(const Step& step) {
  std::vector<unsigned char> pool = step.pool;
  const KvCacheLayout& layout = step.layout;
  int64_t size = SizeOf(layout.dtype);
  auto poison = [&](int64_t element) {
    std::fill_n(pool.begin() + static_cast<std::ptrdiff_t>(element * size), size, 0xFF);
  };
  for (int64_t slot : step.slots) {
    auto block = static_cast<BlockId>(slot / layout.block_size_tokens);
    int64_t offset = slot % layout.block_size_tokens;
    for (int32_t head = 0; head < layout.num_kv_heads; ++head) {
      for (int32_t d = 0; d < layout.head_dim; ++d) {
        poison(layout.KeyOffset(block, kLayer, head) + offset * layout.key_slot_stride +
               d * layout.key_dim_stride);
        poison(layout.ValueOffset(block, kLayer, head) + offset * layout.value_slot_stride + d);
      }
      for (bool of_value : {false, true}) {
        if (layout.has_scales()) {
          auto at = static_cast<std::ptrdiff_t>(ScaleByte(layout, block, head, offset, of_value));
          std::fill_n(pool.begin() + at, sizeof(float), 0xFF);
        }
      }
    }
  }
  return pool;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class PrepareAttentionTest : public CpuBackendTest {
 protected:
  Step RunOnReference(Step step) {
    RunStep(*CreateReferenceBackend(), step);
    return step;
  }
  Step RunOnCpu(Step step, int num_threads) {
    RunStep(*MakeBackend(num_threads), step);
    return step;
  }
};

// All arithmetic is fp32, with a handful of roundings a number.
constexpr double kMaxError = 1e-6;
// Kernel and reference may differ by one rounding of the stored type. They do if their fp32 values
// differ in the last bit and lie at a tie. That is one number in a thousand.
constexpr double kMaxStoredErrorF16 = 1e-4;
constexpr double kMaxStoredErrorBF16 = 1e-3;
constexpr double kMaxStoredErrorEightBits = 3e-3;

double MaxStoredError(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return kMaxError;
    case DType::kF16:
      return kMaxStoredErrorF16;
    case DType::kBF16:
      return kMaxStoredErrorBF16;
    case DType::kF8E4M3:
    case DType::kInt8:
      return kMaxStoredErrorEightBits;
  }
  return 0.0;
}

TEST_P(PrepareAttentionTest, MatchesReference) {
  for (int32_t head_dim : {16, 32, 48, 64, 80, 96, 112, 128, 256}) {
    for (DType dtype : kAllTypes) {
      for (bool norm : {false, true}) {
        for (bool rope : {false, true}) {
          Shape shape{3, 1, head_dim, 5, dtype, norm, rope};
          Step step = MakeStep(shape, 23);

          Step expected = RunOnReference(step);
          Step actual = RunOnCpu(step, 2);

          EXPECT_LT(NormalisedError(QueriesOf(actual), QueriesOf(expected)), kMaxError);
          EXPECT_LT(NormalisedError(CachedOf(actual, false), CachedOf(expected, false)),
                    MaxStoredError(dtype))
              << "keys, head_dim " << head_dim;
          EXPECT_TRUE(SameBits(CachedOf(actual, true), CachedOf(expected, true)))
              << "values, head_dim " << head_dim;
        }
      }
    }
  }
}

TEST_P(PrepareAttentionTest, RoundsToNearestEvenWhenItStores) {
  // Ties in both directions, overflow, denormals, signed zero, infinity and NaN of each type.
  const std::vector<float> special = {0.0F,
                                      -0.0F,
                                      1.0F,
                                      1.0F + 0x1p-11F,
                                      1.0F + 0x3p-11F,
                                      1.0F + 0x1p-8F,
                                      1.0F + 0x3p-8F,
                                      -1.0F - 0x1p-8F,
                                      65504.0F,
                                      65519.9F,
                                      65520.0F,
                                      1e30F,
                                      -1e30F,
                                      0x1p-14F,
                                      0x1p-15F,
                                      0x1.8p-24F,
                                      0x1p-25F,
                                      0x1.000002p-25F,
                                      0x1.ffcp-15F,
                                      0x1.ffep-15F,
                                      3.4e38F,
                                      0x1p-130F,
                                      std::numeric_limits<float>::infinity(),
                                      -std::numeric_limits<float>::infinity(),
                                      std::numeric_limits<float>::quiet_NaN(),
                                      std::bit_cast<float>(0x7F800001U),
                                      std::bit_cast<float>(0xFFFFFFFFU)};
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    Shape shape{1, 1, 32, 8, dtype, false, false};
    Step step = MakeStep(shape, 1);
    std::copy(special.begin(), special.end(), step.qkv.begin() + 32);
    std::copy(special.begin(), special.end(), step.qkv.begin() + 64);

    Step expected = RunOnReference(step);
    Step actual = RunOnCpu(step, 1);

    for (bool values : {false, true}) {
      std::vector<float> a = CachedOf(actual, values);
      std::vector<float> b = CachedOf(expected, values);
      for (size_t i = 0; i < a.size(); ++i) {
        bool both_nan = std::isnan(a[i]) && std::isnan(b[i]);
        EXPECT_TRUE(both_nan || std::bit_cast<uint32_t>(a[i]) == std::bit_cast<uint32_t>(b[i]))
            << NameOf(dtype) << " element " << i << ": " << a[i] << " is not " << b[i];
      }
    }
  }
}

// One token whose value is `value`, as the path stored it and as the reference did.
struct StoredValue {
  std::vector<float> actual;
  std::vector<float> expected;
};

class ScaledStoreTest : public PrepareAttentionTest {
 protected:
  StoredValue Store(DType dtype, const std::vector<float>& value) {
    auto head_dim = static_cast<int32_t>(value.size());
    Step step = MakeStep({1, 1, head_dim, 8, dtype, false, false}, 1);
    std::copy(value.begin(), value.end(), step.qkv.end() - head_dim);
    return {CachedOf(RunOnCpu(step, 1), true), CachedOf(RunOnReference(step), true)};
  }
};

TEST_P(ScaledStoreTest, EveryE4m3NumberIsStoredAsItself) {
  std::vector<float> numbers;
  for (int code = 0; code < 0x7F; ++code) {
    numbers.push_back(reference::FloatFromE4m3(static_cast<uint8_t>(code)));
    numbers.push_back(-numbers.back());
  }

  StoredValue stored = Store(DType::kF8E4M3, numbers);  // the largest is 448: the scale is 1

  EXPECT_TRUE(SameBits(stored.actual, numbers));
  EXPECT_TRUE(SameBits(stored.expected, numbers));
}

TEST_P(ScaledStoreTest, TiesBetweenE4m3NumbersGoToTheEvenOne) {
  std::vector<float> between = {448.0F};
  std::vector<float> even = {448.0F};
  for (int code = 0; code < 0x7E; ++code) {
    const float low = reference::FloatFromE4m3(static_cast<uint8_t>(code));
    const float high = reference::FloatFromE4m3(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    for (float sign : {1.0F, -1.0F}) {
      between.insert(
          between.end(),
          {sign * middle, sign * std::nextafter(middle, low), sign * std::nextafter(middle, high)});
      even.insert(even.end(), {sign * (code % 2 == 0 ? low : high), sign * low, sign * high});
    }
  }

  StoredValue stored = Store(DType::kF8E4M3, between);

  EXPECT_TRUE(SameBits(stored.actual, even));
  EXPECT_TRUE(SameBits(stored.expected, even));
}

TEST_P(ScaledStoreTest, Int8RoundsToNearestEven) {
  std::vector<float> numbers = {127.0F};
  std::vector<float> rounded = {127.0F};
  for (int i = -126; i < 127; ++i) {
    const auto at = static_cast<float>(i);
    numbers.insert(numbers.end(), {at, at + 0.5F, at + 0.49F, at - 0.49F});
    rounded.insert(rounded.end(), {at, i % 2 == 0 ? at : at + 1.0F, at, at});
  }

  StoredValue stored = Store(DType::kInt8, numbers);

  EXPECT_EQ(stored.actual, rounded);
  EXPECT_EQ(stored.expected, rounded);
}

TEST_P(ScaledStoreTest, AScaleMakesTheLargestNumberTheLargestOfTheType) {
  for (DType dtype : {DType::kF8E4M3, DType::kInt8}) {
    for (float largest : {0x1p-99F, 1e-20F, 0.7F, -3.0F, 1e20F, -3.4e38F}) {
      std::vector<float> numbers = Numbers(21, 9, std::fabs(largest) * 0.99F);
      numbers[20] = largest;

      StoredValue stored = Store(dtype, numbers);

      EXPECT_TRUE(SameBits(stored.actual, stored.expected)) << NameOf(dtype) << " " << largest;
      EXPECT_NEAR(stored.actual[20] / largest, 1.0, 1e-6);
      for (size_t i = 0; i < numbers.size(); ++i) {
        // Half a step of the largest numbers is 16 of 448 in e4m3, and 0.5 of 127 in int8.
        EXPECT_LE(std::fabs(stored.actual[i] / largest - numbers[i] / largest), 0.036);
      }
    }
  }
}

TEST_P(ScaledStoreTest, AVectorThatIsNotFiniteReadsAsNaNAndATinyOneAsZero) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (DType dtype : {DType::kF8E4M3, DType::kInt8}) {
    for (float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
      for (size_t at : {size_t{0}, size_t{17}, size_t{20}}) {
        std::vector<float> numbers = Numbers(21, 9, 1.0F);
        numbers[at] = bad;
        StoredValue stored = Store(dtype, numbers);
        for (size_t i = 0; i < numbers.size(); ++i) {
          EXPECT_TRUE(std::isnan(stored.actual[i]) && std::isnan(stored.expected[i]));
        }
      }
    }
    for (float scale : {0.0F, 0x1p-130F, 0x1p-102F}) {
      StoredValue stored = Store(dtype, Numbers(21, 9, scale));
      EXPECT_EQ(stored.actual, std::vector<float>(21, 0.0F));
      EXPECT_EQ(stored.expected, std::vector<float>(21, 0.0F));
    }
  }
}

TEST_P(PrepareAttentionTest, WritesTheTokensSlotsAndNothingElse) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3, DType::kInt8}) {
    Step step = MakeStep({2, 2, 20, 5, dtype, true, true}, 17);

    Step done = RunOnCpu(step, 2);

    EXPECT_EQ(PoolWithoutTokens(done), std::vector<unsigned char>(done.pool.size(), 0xFF));
  }
}

class NeighbourTest : public PrepareAttentionTest {
 protected:
  void ExpectATokenAloneIsTheSame(DType dtype);
};

void NeighbourTest::ExpectATokenAloneIsTheSame(DType dtype) {
  Shape shape{6, 2, 48, 16, dtype, true, true};
  constexpr int32_t kNumTokens = 150;
  Step step = MakeStep(shape, kNumTokens);
  Step together = RunOnCpu(step, 3);
  auto width = static_cast<size_t>(shape.row_width());

  for (int32_t t : {0, 1, 77, kNumTokens - 1}) {
    auto at = static_cast<size_t>(t);
    Step alone;
    alone.shape = shape;
    alone.positions = std::vector<int32_t>(1, step.positions[at]);
    alone.slots = std::vector<int64_t>(1, step.slots[at]);
    auto row = step.qkv.begin() + static_cast<std::ptrdiff_t>(at * width);
    alone.qkv = std::vector<float>(row, row + static_cast<std::ptrdiff_t>(width));
    alone = RunOnCpu(alone, 1);

    Step own = together;
    own.positions = alone.positions;
    own.slots = alone.slots;
    auto own_row = together.qkv.begin() + static_cast<std::ptrdiff_t>(at * width);
    own.qkv = std::vector<float>(own_row, own_row + static_cast<std::ptrdiff_t>(width));
    EXPECT_TRUE(SameBits(QueriesOf(alone), QueriesOf(own)));
    EXPECT_TRUE(SameBits(CachedOf(alone, false), CachedOf(own, false)));
    EXPECT_TRUE(SameBits(CachedOf(alone, true), CachedOf(own, true)));
  }
}

TEST_P(NeighbourTest, ATokenDoesNotDependOnItsNeighboursOrOnThreads) {
  for (DType dtype : {DType::kF16, DType::kF8E4M3, DType::kInt8}) {
    SCOPED_TRACE(NameOf(dtype));
    ExpectATokenAloneIsTheSame(dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, ScaledStoreTest, testing::ValuesIn(CpuIsas()), IsaName);
INSTANTIATE_TEST_SUITE_P(Cpu, NeighbourTest, testing::ValuesIn(CpuIsas()), IsaName);
INSTANTIATE_TEST_SUITE_P(Cpu, PrepareAttentionTest, testing::ValuesIn(CpuIsas()), IsaName);

}  // namespace
}  // namespace quire
