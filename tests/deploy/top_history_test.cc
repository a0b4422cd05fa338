#include "deploy/cli/top_history.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::GetStateResponse At(double seconds, int64_t num_generated_tokens) {
  v1::GetStateResponse state;
  state.set_time_us(static_cast<int64_t>(seconds * 1e6));
  state.set_num_generated_tokens(num_generated_tokens);
  return state;
}

TEST(TopHistoryTest, TwoAnswersMakeARate) {
  TopHistory history;
  history.Add(At(10, 100));
  EXPECT_EQ(history.Since(5).generated_tokens, 0);
  EXPECT_THAT(history.Rates(&TopCounts::generated_tokens, 10), IsEmpty());

  history.Add(At(12, 160));

  EXPECT_EQ(history.Since(0).seconds, 2);
  EXPECT_EQ(history.Since(0).generated_tokens, 60);
  EXPECT_THAT(history.Rates(&TopCounts::generated_tokens, 10), ElementsAre(30));
}

TEST(TopHistoryTest, ALongerTimeReachesFurtherBack) {
  TopHistory history;
  for (int i = 0; i < 10; ++i) {
    history.Add(At(i, i * i));
  }

  EXPECT_EQ(history.Since(1).generated_tokens, 81 - 64);
  EXPECT_EQ(history.Since(3).generated_tokens, 81 - 36);
  EXPECT_EQ(history.Since(1000).generated_tokens, 81);
  EXPECT_THAT(history.Rates(&TopCounts::generated_tokens, 3), ElementsAre(13, 15, 17));
}

TEST(TopHistoryTest, TheSameMomentAgainIsNoSample) {
  TopHistory history;
  history.Add(At(1, 5));
  history.Add(At(1, 5));

  EXPECT_EQ(history.Since(0).seconds, 0);
}

TEST(TopHistoryTest, AnotherProcessBeginsAnew) {
  TopHistory history;
  history.Add(At(1, 0));
  history.Add(At(2, 1000));
  history.Add(At(3, 10));  // its successor's clock is the same one

  EXPECT_EQ(history.Since(100).generated_tokens, 0);
  history.Add(At(4, 30));
  EXPECT_EQ(history.Since(100).generated_tokens, 20);
}

TEST(TopHistoryTest, RemembersNoMoreThanItSays) {
  TopHistory history;
  for (size_t i = 0; i < 2 * TopHistory::kMaxSamples; ++i) {
    history.Add(At(static_cast<double>(i), 0));
  }

  EXPECT_EQ(history.Rates(&TopCounts::generated_tokens, 1 << 20).size(),
            TopHistory::kMaxSamples - 1);
}

TEST(TopHistoryTest, SharesAreNumbers) {
  EXPECT_EQ(ShareOf(1, 4), 0.25);
  EXPECT_EQ(ShareOf(1, 0), 0);
  EXPECT_EQ(ShareOf(-1, 4), 0);
  EXPECT_EQ(ShareOf(std::numeric_limits<double>::quiet_NaN(), 1), 0);
  EXPECT_EQ(ShareOf(std::numeric_limits<double>::max(), 1e-300), 0);
}

}  // namespace
}  // namespace quire
