#include "scheduler/core/output_lengths.h"

#include "gtest/gtest.h"

namespace quire {
namespace {

class OutputLengthsTest : public testing::Test {
 protected:
  void End(size_t count, int32_t num_tokens, int32_t max_tokens, bool is_whole = true) {
    for (size_t i = 0; i < count; ++i) {
      lengths_.OnEnd(num_tokens, max_tokens, is_whole);
    }
  }

  static constexpr size_t kFew = OutputLengths::kFewestLengths;
  static constexpr size_t kAll = OutputLengths::kNumLengths;
  OutputLengths lengths_;
};

TEST_F(OutputLengthsTest, SaysNothingUntilEnoughWereSeen) {
  End(kFew - 1, 10, 100);
  EXPECT_FALSE(lengths_.is_known());
  EXPECT_EQ(lengths_.Expect(100), 0);

  End(1, 10, 100);
  EXPECT_TRUE(lengths_.is_known());
  EXPECT_EQ(lengths_.Expect(100), 10);
  EXPECT_EQ(lengths_.ExpectOfAny(), 10);
}

TEST_F(OutputLengthsTest, ThreeOfFourAreAsLong) {
  End(kAll / 4, 5, 100);
  End(3 * kAll / 4, 80, 100);
  EXPECT_EQ(lengths_.Expect(100), 80);

  End(1, 5, 100);  // in place of a 5: the oldest goes first
  EXPECT_EQ(lengths_.Expect(100), 80);
  End(kAll / 4, 5, 100);
  EXPECT_EQ(lengths_.Expect(100), 5);
}

TEST_F(OutputLengthsTest, ShortRequestsDoNotMakeLongOnesLookShort) {
  End(kAll, 400, 400);
  End(kAll, 1, 1);

  EXPECT_EQ(lengths_.Expect(400), 400);
  EXPECT_EQ(lengths_.Expect(1), 1);
  EXPECT_EQ(lengths_.ExpectOfAny(), 1);
}

TEST_F(OutputLengthsTest, AClassThatWasNotSeenIsToldByTheNextLargerOneAndElseByTheNextSmallerOne) {
  End(kFew, 30, 100);
  End(kFew, 700, 1000);

  EXPECT_EQ(lengths_.Expect(20), 20);  // of 64 to 127, cut
  EXPECT_EQ(lengths_.Expect(200), 200);
  EXPECT_EQ(lengths_.Expect(5000), 700);
}

TEST_F(OutputLengthsTest, WhatIsCutOffCountsWhenItCameAsFarAsWasExpected) {
  End(kFew, 50, 100);

  End(kAll, 49, 100, /*is_whole=*/false);
  EXPECT_EQ(lengths_.Expect(100), 50);
  End(kAll, 90, 100, /*is_whole=*/false);
  EXPECT_EQ(lengths_.Expect(100), 90);
}

TEST_F(OutputLengthsTest, WhenAllAreCutOffTheirLengthsAreLearnt) {
  End(kAll, 5, 5);
  EXPECT_EQ(lengths_.Expect(400), 5);

  End(kFew, 250, 400, /*is_whole=*/false);

  EXPECT_EQ(lengths_.Expect(400), 250);
}

TEST_F(OutputLengthsTest, EveryMaxTokensHasAClass) {
  for (int32_t max_tokens : {0, 1, 2, 1 << 30, 2147483647}) {
    End(kFew, 1, max_tokens);
    EXPECT_LE(lengths_.Expect(max_tokens), 1);
  }
  EXPECT_EQ(lengths_.Expect(2147483647), 1);
  lengths_.OnEnd(0, 10, /*is_whole=*/false);  // nothing was computed: says nothing
  EXPECT_EQ(lengths_.ExpectOfAny(), 1);
}

}  // namespace
}  // namespace quire
