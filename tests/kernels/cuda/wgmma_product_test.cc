// One product of a warpgroup at a time against plain loops, in every form, type and size that the
// kernels use. If a kernel is wrong on a device, this test shows whether the product, its
// descriptors or its fragments are wrong. Numbers are small integers, so that every sum is exact.
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/device/element.h"
#include "kernels/cuda/runtime.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/single_wgmma_product.h"

namespace quire::gpu {
namespace {

int NumberA(int row, int k) { return (row * 7 + k * 3 + row / 8) % 9 - 4; }
int NumberB(int k, int column) { return (k * 5 + column * 11 + column / 8) % 7 - 3; }

uint16_t Bits(DType dtype, int number) {
  const auto value = static_cast<float>(number);
  return dtype == DType::kBF16 ? FromFloat<Bf16>(value).bits : FromFloat<F16>(value).bits;
}

// Type, columns, elements of a row of shared memory, whether A is in shared memory.
using Case = std::tuple<DType, int32_t, int32_t, bool>;

class WgmmaProductTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    DeviceInfo info;
    ASSERT_EQ(QueryDevice(0, &info), 0);
    if (info.compute_capability != 90) {
      GTEST_SKIP() << "needs compute capability 9.0";
    }
  }

  // The product of one slice of K, against loops.
  void ExpectProduct(int32_t slice, bool accumulates) {
    const auto [dtype, columns, row_elements, a_is_shared] = GetParam();
    const int depth = a_is_shared ? row_elements : kFragmentDepth;
    std::vector<uint16_t> a;
    a.reserve(static_cast<size_t>(kProductRows * depth));
    for (int row = 0; row < kProductRows; ++row) {
      for (int k = 0; k < depth; ++k) {
        a.push_back(Bits(dtype, NumberA(row, k)));
      }
    }
    std::vector<uint16_t> b;
    b.reserve(static_cast<size_t>(columns * depth));
    for (int i = 0; i < columns * depth; ++i) {
      b.push_back(Bits(
          dtype, a_is_shared ? NumberB(i % depth, i / depth) : NumberB(i / columns, i % columns)));
    }
    DeviceArray<uint16_t> device_a(a);
    DeviceArray<uint16_t> device_b(b);
    DeviceArray<float> out(int64_t{kProductRows} * columns);

    ASSERT_EQ(RunSingleProduct({.dtype = dtype,
                                .columns = columns,
                                .row_elements = row_elements,
                                .slice = slice,
                                .a_is_shared = a_is_shared,
                                .accumulates = accumulates,
                                .init = 1000.0F,
                                .a = device_a.data(),
                                .b = device_b.data(),
                                .out = out.data()},
                               nullptr),
              0);

    const std::vector<float> got = out.ToHost();
    for (int row = 0; row < kProductRows; ++row) {
      for (int column = 0; column < columns; ++column) {
        int expected = accumulates ? 1000 : 0;
        for (int k = kProductDepth * slice; k < kProductDepth * (slice + 1); ++k) {
          expected += NumberA(row, k) * NumberB(k, column);
        }
        ASSERT_EQ(got[static_cast<size_t>(row * columns + column)], static_cast<float>(expected))
            << "slice " << slice << ", row " << row << ", column " << column;
      }
    }
  }
};

TEST_P(WgmmaProductTest, EverySliceOfKIsMultiplied) {
  const auto [dtype, columns, row_elements, a_is_shared] = GetParam();
  const int depth = a_is_shared ? row_elements : kFragmentDepth;
  for (int32_t slice = 0; slice < depth / kProductDepth; ++slice) {
    ExpectProduct(slice, /*accumulates=*/true);
    if (a_is_shared) {  // those with a factor in registers always add
      ExpectProduct(slice, /*accumulates=*/false);
    }
  }
}

std::string NameOfCase(const testing::TestParamInfo<Case>& info) {
  const auto [dtype, columns, row_elements, a_is_shared] = info.param;
  return std::string(dtype == DType::kBF16 ? "Bf16" : "F16") + "Columns" + std::to_string(columns) +
         "RowsOf" + std::to_string(row_elements) +
         (a_is_shared ? "AInSharedMemory" : "AInRegisters");
}

INSTANTIATE_TEST_SUITE_P(Scores,
                         WgmmaProductTest,
                         testing::Combine(testing::Values(DType::kBF16, DType::kF16),
                                          testing::Values(64, 128),
                                          testing::Values(64, 32, 16),
                                          testing::Values(true)),
                         NameOfCase);
INSTANTIATE_TEST_SUITE_P(Values,
                         WgmmaProductTest,
                         testing::Combine(testing::Values(DType::kBF16, DType::kF16),
                                          testing::Values(64, 128),
                                          testing::Values(64),
                                          testing::Values(false)),
                         NameOfCase);
INSTANTIATE_TEST_SUITE_P(ValuesOfShortPieces,
                         WgmmaProductTest,
                         testing::Values(Case{DType::kBF16, 32, 32, false},
                                         Case{DType::kF16, 32, 32, false},
                                         Case{DType::kBF16, 16, 16, false},
                                         Case{DType::kF16, 16, 16, false}),
                         NameOfCase);

}  // namespace
}  // namespace quire::gpu
