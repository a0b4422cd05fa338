#include <cstdint>
#include <iterator>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/gpu_ops.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/row_compare.h"

namespace quire::gpu {
namespace {

// More rows than tokens; a token twice.
constexpr int64_t kTableRows = 11;
const std::vector<TokenId> kTokenIds = {7, 0, 10, 7, 3};
const std::vector<int32_t> kPositions = {0, 4, 2, 1, 3};
constexpr int32_t kPositionOffset = 2;
constexpr int64_t kPositionRows = 7;

// One lane, a part of a warp, a warp and one lane, more than one round of the CTA.
constexpr int32_t kWidths[] = {8, 64, 264, 2048, 2056, 4104};

// The tables of params and, for the reference, the same on the host. Out of fp32 is rounded once.
template <typename Out>
void ExpectAgreesWithTheReference(EmbeddingParams params, EmbeddingParams on_host) {
  DeviceArray<TokenId> token_ids(kTokenIds);
  DeviceArray<int32_t> positions(kPositions);
  DeviceArray<Out> out(std::ssize(kTokenIds) * params.table.cols);
  params.num_tokens = std::ssize(kTokenIds);
  params.token_ids = token_ids.data();
  params.positions = positions.data();
  params.out_dtype = DTypeOf<Out>::kValue;
  params.out = out.data();
  ASSERT_EQ(Embed(params, nullptr), 0);

  std::vector<float> expected(static_cast<size_t>(out.size()));
  on_host.num_tokens = std::ssize(kTokenIds);
  on_host.token_ids = kTokenIds.data();
  on_host.positions = kPositions.data();
  on_host.out = expected.data();
  reference::Embed(on_host);
  ExpectSameBits(out.ToHost(), ToElements<Out>(expected));
}

template <typename T, typename Values>
MatrixView TableOf(const Values& values, int64_t width) {
  return {values.data(), FormatOf(DTypeOf<T>::kValue), std::ssize(values) / width, width};
}

template <typename Table, typename Out>
void ExpectRowsOfTheTable() {
  for (const int32_t width : kWidths) {
    const auto table = RandomElements<Table>(kTableRows * width, 1, 1.0F);
    DeviceArray<Table> device_table(table);
    ExpectAgreesWithTheReference<Out>({.table = TableOf<Table>(device_table, width)},
                                      {.table = TableOf<Table>(table, width)});
  }
}

TEST(EmbedTest, CopiesTheRowsOfTheTokensAndConvertsThem) {
  ExpectRowsOfTheTable<float, float>();
  ExpectRowsOfTheTable<float, Bf16>();
  ExpectRowsOfTheTable<float, F16>();
  ExpectRowsOfTheTable<Bf16, float>();
  ExpectRowsOfTheTable<Bf16, Bf16>();
  ExpectRowsOfTheTable<Bf16, F16>();
  ExpectRowsOfTheTable<F16, float>();
  ExpectRowsOfTheTable<F16, Bf16>();
  ExpectRowsOfTheTable<F16, F16>();
}

template <typename Table, typename Position, typename Out>
void ExpectSumsInFp32() {
  for (const int32_t width : kWidths) {
    const auto table = RandomElements<Table>(kTableRows * width, 2, 1.0F);
    const auto position_table = RandomElements<Position>(kPositionRows * width, 3, 1.0F);
    DeviceArray<Table> device_table(table);
    DeviceArray<Position> device_positions(position_table);
    ExpectAgreesWithTheReference<Out>({.table = TableOf<Table>(device_table, width),
                                       .position_table = TableOf<Position>(device_positions, width),
                                       .position_offset = kPositionOffset},
                                      {.table = TableOf<Table>(table, width),
                                       .position_table = TableOf<Position>(position_table, width),
                                       .position_offset = kPositionOffset});
  }
}

TEST(EmbedTest, AddsThePositionsRowInFp32) {
  ExpectSumsInFp32<Bf16, Bf16, float>();
  ExpectSumsInFp32<Bf16, Bf16, Bf16>();
  ExpectSumsInFp32<F16, F16, F16>();
  ExpectSumsInFp32<Bf16, float, float>();
  ExpectSumsInFp32<float, F16, Bf16>();
}

TEST(EmbedTest, NoTokensAreNoWork) {
  EXPECT_EQ(Embed({.num_tokens = 0, .table = {.cols = 64}}, nullptr), 0);
}

TEST(EmbedTest, RefusesTypesThatHaveNoKernel) {
  const DType f8 = DType::kF8E4M3;
  const float table = 0.0F;
  const MatrixView good = {&table, WeightFormat::kBF16, 1, 32};
  const MatrixView bad = {&table, WeightFormat::kQ8_0, 1, 32};

  EXPECT_EQ(Embed({.num_tokens = 1, .table = bad}, nullptr), kUnsupported);
  EXPECT_EQ(Embed({.num_tokens = 1, .table = good, .out_dtype = f8}, nullptr), kUnsupported);
  EXPECT_EQ(Embed({.num_tokens = 1, .table = good, .position_table = bad}, nullptr), kUnsupported);
}

}  // namespace
}  // namespace quire::gpu
