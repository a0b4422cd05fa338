#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/gpu_ops.h"
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

template <typename Table, typename Out>
std::vector<Out> Expected(const std::vector<Table>& table, int32_t width) {
  std::vector<Out> out;
  for (const TokenId token_id : kTokenIds) {
    for (int32_t i = 0; i < width; ++i) {
      out.push_back(
          FromFloat<Out>(ToFloat(table[static_cast<size_t>(int64_t{token_id} * width + i)])));
    }
  }
  return out;
}

template <typename Table, typename Out>
void ExpectRowsOfTheTable() {
  for (const int32_t width : kWidths) {
    const auto table = RandomElements<Table>(kTableRows * width, 1, 1.0F);
    DeviceArray<Table> device_table(table);
    DeviceArray<TokenId> token_ids(kTokenIds);
    DeviceArray<Out> out(static_cast<int64_t>(kTokenIds.size()) * width);

    ASSERT_EQ(Embed({.num_tokens = static_cast<int32_t>(kTokenIds.size()),
                     .width = width,
                     .token_ids = token_ids.data(),
                     .table = device_table.data(),
                     .table_dtype = DTypeOf<Table>::kValue,
                     .out = out.data(),
                     .out_dtype = DTypeOf<Out>::kValue},
                    nullptr),
              0);

    ExpectSameBits(out.ToHost(), Expected<Table, Out>(table, width));
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
    DeviceArray<TokenId> token_ids(kTokenIds);
    DeviceArray<int32_t> positions(kPositions);
    DeviceArray<Out> out(static_cast<int64_t>(kTokenIds.size()) * width);

    ASSERT_EQ(Embed({.num_tokens = static_cast<int32_t>(kTokenIds.size()),
                     .width = width,
                     .token_ids = token_ids.data(),
                     .table = device_table.data(),
                     .table_dtype = DTypeOf<Table>::kValue,
                     .position_table = device_positions.data(),
                     .position_dtype = DTypeOf<Position>::kValue,
                     .positions = positions.data(),
                     .position_offset = kPositionOffset,
                     .out = out.data(),
                     .out_dtype = DTypeOf<Out>::kValue},
                    nullptr),
              0);

    std::vector<Out> expected;
    for (size_t t = 0; t < kTokenIds.size(); ++t) {
      for (int32_t i = 0; i < width; ++i) {
        const auto row = int64_t{kPositions[t]} + kPositionOffset;
        expected.push_back(
            FromFloat<Out>(ToFloat(table[static_cast<size_t>(int64_t{kTokenIds[t]} * width + i)]) +
                           ToFloat(position_table[static_cast<size_t>(row * width + i)])));
      }
    }
    ExpectSameBits(out.ToHost(), expected);
  }
}

TEST(EmbedTest, AddsThePositionsRowInFp32) {
  ExpectSumsInFp32<Bf16, Bf16, float>();
  ExpectSumsInFp32<Bf16, Bf16, Bf16>();
  ExpectSumsInFp32<F16, F16, F16>();
  ExpectSumsInFp32<Bf16, float, float>();
  ExpectSumsInFp32<float, F16, Bf16>();
}

TEST(EmbedTest, PositionsWithoutATableAreNotLookedUp) {
  constexpr int32_t kWidth = 8;
  const auto table = RandomElements<Bf16>(kTableRows * kWidth, 4, 1.0F);
  DeviceArray<Bf16> device_table(table);
  DeviceArray<TokenId> token_ids(kTokenIds);
  DeviceArray<int32_t> positions(kPositions);
  DeviceArray<float> out(static_cast<int64_t>(kTokenIds.size()) * kWidth);

  ASSERT_EQ(Embed({.num_tokens = static_cast<int32_t>(kTokenIds.size()),
                   .width = kWidth,
                   .token_ids = token_ids.data(),
                   .table = device_table.data(),
                   .positions = positions.data(),
                   .out = out.data()},
                  nullptr),
            0);

  ExpectSameBits(out.ToHost(), (Expected<Bf16, float>(table, kWidth)));
}

TEST(EmbedTest, NoTokensAreNoWork) { EXPECT_EQ(Embed({.num_tokens = 0, .width = 64}, nullptr), 0); }

TEST(EmbedTest, RefusesTypesThatHaveNoKernel) {
  const DType f8 = DType::kF8E4M3;
  const float table = 0.0F;

  EXPECT_EQ(Embed({.num_tokens = 1, .width = 8, .table_dtype = f8}, nullptr), kUnsupported);
  EXPECT_EQ(Embed({.num_tokens = 1, .width = 8, .out_dtype = f8}, nullptr), kUnsupported);
  EXPECT_EQ(
      Embed({.num_tokens = 1, .width = 8, .position_table = &table, .position_dtype = f8}, nullptr),
      kUnsupported);
}

}  // namespace
}  // namespace quire::gpu
