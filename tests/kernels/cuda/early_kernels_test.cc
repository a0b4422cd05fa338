// The kernels of a step that start early: on one stream each may begin beside the operation before
// it, whose results the emulator poisons until the wait. So each must give the bits that it gives
// after a wait for the stream. (A write or a CTA without a wait is a fault.)
#include <cstdint>
#include <functional>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/device/element.h"
#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/quantize_rows.h"
#include "kernels/cuda/runtime.h"
#include "tests/kernels/cuda/device_array.h"

namespace quire::gpu {
namespace {

constexpr int32_t kTokens = 3;
constexpr int32_t kHeads = 2;
constexpr int32_t kKvHeads = 1;
constexpr int32_t kHeadDim = 64;
constexpr int32_t kWidth = (kHeads + 2 * kKvHeads) * kHeadDim;
constexpr int32_t kBlockSize = 8;

std::vector<float> Numbers(int64_t count, float factor) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < count; ++i) {
    numbers.push_back(factor * static_cast<float>((i * 37 + 11) % 61 - 30));
  }
  return numbers;
}

std::vector<Bf16> Rounded(const std::vector<float>& numbers) {
  std::vector<Bf16> rounded;
  for (const float number : numbers) {
    rounded.push_back(FromFloat<Bf16>(number));
  }
  return rounded;
}

// A part of a decode step: each operation reads what the one before it has written.
class Chain {
 public:
  explicit Chain(int32_t width) : width_(width) {}

  // Calls `between` after each operation.
  void Run(Stream stream, const std::function<void()>& between) {
    const auto then = [&between](int error) {
      EXPECT_EQ(error, 0);
      between();
    };
    then(Norm({.num_tokens = kTokens,
               .width = width_,
               .residual = residual_.data(),
               .delta = delta_.data(),
               .weight = weight_.data(),
               .out = hidden_.data()},
              DType::kBF16,
              stream));
    then(Activate({.gated = false,
                   .num_tokens = kTokens,
                   .width = width_,
                   .in = hidden_.data(),
                   .out = activated_.data()},
                  DType::kBF16,
                  stream));
    then(Norm({.kind = NormKind::kLayerNorm,
               .num_tokens = kTokens,
               .width = width_,
               .residual = residual_.data(),
               .delta = activated_.data(),
               .weight = weight_.data(),
               .out = qkv_.data()},
              DType::kBF16,
              stream));
    then(PrepareAttention(Prepare(), DType::kBF16, stream));
    then(QuantizeRows({.num_rows = kTokens,
                       .width = width_,
                       .in = qkv_.data(),
                       .out = quantized_.data(),
                       .scales = scales_.data()},
                      stream));
  }

  struct Results {
    std::vector<float> residual;
    std::vector<Bf16> qkv;
    std::vector<Bf16> pool;
    std::vector<F8E4M3> quantized;
    std::vector<float> scales;
  };
  Results Read() const {
    return {.residual = residual_.ToHost(),
            .qkv = qkv_.ToHost(),
            .pool = pool_.ToHost(),
            .quantized = quantized_.ToHost(),
            .scales = scales_.ToHost()};
  }

 private:
  PrepareAttentionParams Prepare() {
    PrepareAttentionParams params = {.num_tokens = kTokens,
                                     .num_heads = kHeads,
                                     .qkv = qkv_.data(),
                                     .rope_cos = cos_.data(),
                                     .rope_sin = sin_.data(),
                                     .positions = positions_.data(),
                                     .slot_mapping = slots_.data()};
    params.cache = {.base = pool_.data(),
                    .num_blocks = 2,
                    .layout = SwizzledRows({.num_layers = 1,
                                            .num_kv_heads = kKvHeads,
                                            .head_dim = kHeadDim,
                                            .block_size_tokens = kBlockSize,
                                            .dtype = DType::kBF16})};
    return params;
  }

  const int32_t width_;
  DeviceArray<float> residual_{Numbers(int64_t{kTokens} * width_, 0.25F)};
  DeviceArray<Bf16> delta_{Rounded(Numbers(int64_t{kTokens} * width_, 0.125F))};
  DeviceArray<float> weight_{Numbers(width_, 0.5F)};
  DeviceArray<Bf16> hidden_{int64_t{kTokens} * width_};
  DeviceArray<Bf16> activated_{int64_t{kTokens} * width_};
  DeviceArray<Bf16> qkv_{int64_t{kTokens} * width_};
  DeviceArray<float> cos_{Numbers(16 * kHeadDim / 2, 0.03125F)};
  DeviceArray<float> sin_{Numbers(16 * kHeadDim / 2, 0.015625F)};
  DeviceArray<int32_t> positions_{std::vector<int32_t>{0, 7, 15}};
  DeviceArray<int64_t> slots_{std::vector<int64_t>{8, 15, 1}};
  DeviceArray<Bf16> pool_{std::vector<Bf16>(size_t{2} * kBlockSize * kHeadDim * 2)};
  DeviceArray<F8E4M3> quantized_{int64_t{kTokens} * width_};
  DeviceArray<float> scales_{int64_t{kTokens}};
};

template <typename T>
std::vector<uint32_t> Bits(const std::vector<T>& values) {
  std::vector<uint32_t> bits;
  for (const T& value : values) {
    bits.push_back(value.bits);
  }
  return bits;
}

// The widths are those of each version of norm and quantize_rows, the last of rows that do not stay
// in registers.
TEST(EarlyKernelsTest, EachGivesTheSameBitsBesideTheOperationBeforeIt) {
  Stream stream = nullptr;
  ASSERT_EQ(CreateStream(&stream), 0);
  for (const int32_t width : {kWidth, 4352, 8448, 16640}) {
    Chain apart(width);
    apart.Run(stream, [&] { ASSERT_EQ(Synchronize(stream), 0); });
    const Chain::Results expected = apart.Read();
    Chain together(width);

    together.Run(stream, [] {});

    ASSERT_EQ(Synchronize(stream), 0);
    const Chain::Results results = together.Read();
    EXPECT_EQ(results.residual, expected.residual) << width;
    EXPECT_EQ(Bits(results.qkv), Bits(expected.qkv)) << width;
    EXPECT_EQ(Bits(results.pool), Bits(expected.pool)) << width;
    EXPECT_EQ(Bits(results.quantized), Bits(expected.quantized)) << width;
    EXPECT_EQ(results.scales, expected.scales) << width;
    for (const float number : expected.residual) {
      ASSERT_TRUE(number == number) << "NaN";
    }
  }
  ASSERT_EQ(DestroyStream(stream), 0);
}

// A decode step replays a graph, in which kernels start early too.
TEST(EarlyKernelsTest, AGraphOfThemGivesTheSameBits) {
  Stream stream = nullptr;
  ASSERT_EQ(CreateStream(&stream), 0);
  Chain apart(kWidth);
  apart.Run(stream, [&] { ASSERT_EQ(Synchronize(stream), 0); });
  Chain recorded(kWidth);
  Graph graph = nullptr;
  ASSERT_EQ(BeginGraph(stream), 0);
  recorded.Run(stream, [] {});
  ASSERT_EQ(EndGraph(stream, &graph), 0);

  ASSERT_EQ(LaunchGraph(graph, stream), 0);

  ASSERT_EQ(Synchronize(stream), 0);
  EXPECT_EQ(recorded.Read().residual, apart.Read().residual);
  EXPECT_EQ(Bits(recorded.Read().quantized), Bits(apart.Read().quantized));
  ASSERT_EQ(DestroyGraph(graph), 0);
  ASSERT_EQ(DestroyStream(stream), 0);
}

}  // namespace
}  // namespace quire::gpu
