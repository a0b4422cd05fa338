#include "kernels/cuda/partial_results.cuh"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/runtime.h"
#include "tests/kernels/cuda/device_array.h"

namespace quire::gpu {
namespace {

QUIRE_KERNEL void StoreRow(float* out, float weight_sum) {
  const float sums[4] = {2.0F, 4.0F, 6.0F, 0.0F};
  StoreOutput(out, sums, weight_sum, /*v_scale=*/0.5F);
}

std::vector<float> Row(float weight_sum) {
  DeviceArray<float> out(4);
  EXPECT_EQ(QUIRE_LAUNCH(StoreRow, dim3(1), dim3(1), 0, nullptr, out.data(), weight_sum), 0);
  return out.ToHost();
}

TEST(PartialResultsTest, ARowIsDividedByItsWeights) {
  EXPECT_EQ(Row(4.0F), (std::vector<float>{0.25F, 0.5F, 0.75F, 0.0F}));
}

TEST(PartialResultsTest, ARowWithoutWeightsIsZero) {
  EXPECT_EQ(Row(0.0F), (std::vector<float>(4, 0.0F)));
}

TEST(PartialResultsTest, ARowWithNaNKeepsIt) {
  for (const float number : Row(std::nanf(""))) {
    EXPECT_TRUE(std::isnan(number));
  }
}

}  // namespace
}  // namespace quire::gpu
