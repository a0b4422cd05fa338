#include "worker/model/alibi.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::FloatEq;

// Expected numbers are those of build_alibi_tensor of Hugging Face transformers.

TEST(AlibiTest, APowerOfTwoOfHeadsHasTheGeometricSlopesOfThePaper) {
  EXPECT_THAT(AlibiSlopes(1), ElementsAre(0.00390625F));
  EXPECT_THAT(
      AlibiSlopes(8),
      ElementsAre(0.5F, 0.25F, 0.125F, 0.0625F, 0.03125F, 0.015625F, 0.0078125F, 0.00390625F));
}

TEST(AlibiTest, FurtherHeadsTakeTheSlopesBetween) {
  EXPECT_THAT(AlibiSlopes(3), ElementsAre(0.0625F, 0.00390625F, 0.25F));
  EXPECT_THAT(AlibiSlopes(12),
              ElementsAre(0.5F,
                          0.25F,
                          0.125F,
                          0.0625F,
                          0.03125F,
                          0.015625F,
                          0.0078125F,
                          0.00390625F,
                          FloatEq(0.70710677F),
                          FloatEq(0.35355338F),
                          FloatEq(0.17677668F),
                          FloatEq(0.08838834F)));
}

// The slopes of the largest BLOOM: powers of a first slope that was rounded to fp32.
TEST(AlibiTest, ManyHeadsHaveTheSlopesOfTransformersToTheLastBits) {
  const std::vector<float> slopes = AlibiSlopes(112);

  ASSERT_EQ(slopes.size(), 112U);
  EXPECT_FLOAT_EQ(slopes[0], 0.91700405F);
  EXPECT_FLOAT_EQ(slopes[31], 0.062500015F);
  EXPECT_FLOAT_EQ(slopes[63], 0.0039062514F);
  EXPECT_FLOAT_EQ(slopes[64], 0.9576033F);
  EXPECT_FLOAT_EQ(slopes[65], 0.8781261F);
  EXPECT_FLOAT_EQ(slopes[111], 0.01631677F);
}

}  // namespace
}  // namespace quire
