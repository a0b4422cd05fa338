#include "deploy/clients/cpp/retry_policy.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "gtest/gtest.h"

namespace quire {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kNoTime(0);

// The waits of a policy whose servers never answer, in all. Each attempt lasts as given.
milliseconds WaitOut(Patience& patience, milliseconds attempt) {
  milliseconds sum(0);
  for (int i = 0; i < 100'000; ++i) {
    const std::optional<milliseconds> wait = patience.WaitUnanswered(attempt);
    if (!wait.has_value()) {
      return sum;
    }
    sum += *wait;
  }
  ADD_FAILURE() << "it never gives up";
  return sum;
}

TEST(PatienceTest, WaitsDoubleToTheLongestShortenedByUpToHalf) {
  const RetryPolicy policy;
  Patience patience(policy);
  milliseconds longest = policy.first_wait;
  for (int i = 0; i < 40; ++i) {
    const milliseconds wait = *patience.WaitUnanswered(kNoTime);
    EXPECT_GE(wait, longest / 2) << i;
    EXPECT_LE(wait, longest) << i;
    longest = std::min(2 * longest, policy.max_wait);
  }
}

TEST(PatienceTest, ClientsThatFailTogetherComeAgainApart) {
  Patience one{RetryPolicy()};
  Patience other{RetryPolicy()};
  milliseconds apart(0);
  for (int i = 0; i < 20; ++i) {
    apart = std::max(
        apart, std::chrono::abs(*one.WaitUnanswered(kNoTime) - *other.WaitUnanswered(kNoTime)));
  }
  EXPECT_GT(apart, milliseconds(50));
}

TEST(PatienceTest, WaitsAreInAllTheLimit) {
  Patience patience{RetryPolicy()};

  EXPECT_EQ(WaitOut(patience, kNoTime), seconds(180));
  EXPECT_EQ(patience.unanswered(), seconds(180));
}

TEST(PatienceTest, AnAttemptCountsAsFarAsItsServerMayHaveBeenDead) {
  RetryPolicy policy;
  policy.max_unanswered = seconds(60);
  Patience stopped(policy);
  Patience queued(policy);

  EXPECT_FALSE(stopped.WaitUnanswered(seconds(7)) == std::nullopt);
  EXPECT_LE(WaitOut(stopped, seconds(7)), seconds(60 - 7 * 7));
  EXPECT_TRUE(queued.WaitUnanswered(std::chrono::hours(1)).has_value());
  EXPECT_LT(queued.unanswered(), seconds(11));
}

TEST(PatienceTest, TheFirstMessageHasALimitOfItsOwnWhereThePolicySaysSo) {
  RetryPolicy policy;
  policy.max_unanswered_at_first = seconds(30);
  Patience patience(policy);

  EXPECT_EQ(WaitOut(patience, kNoTime), seconds(30));
  patience.NoteMessage();
  EXPECT_EQ(WaitOut(patience, kNoTime), seconds(180));
}

TEST(PatienceTest, AServerThatRefusesIsWorthThePatienceOfAMessage) {
  RetryPolicy policy;
  policy.max_unanswered_at_first = seconds(30);
  Patience patience(policy);

  patience.NoteServer();
  EXPECT_EQ(WaitOut(patience, kNoTime), seconds(180));
}

TEST(PatienceTest, AMessageStartsBothAccountsAnew) {
  RetryPolicy policy;
  policy.max_wait_for_a_place = seconds(60);
  Patience patience(policy);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(patience.WaitForPlace(seconds(50)), seconds(50));
    EXPECT_EQ(WaitOut(patience, kNoTime), seconds(180));
    patience.NoteMessage();
    EXPECT_LE(*patience.WaitUnanswered(kNoTime), policy.first_wait);
  }
}

TEST(PatienceTest, AFullServerIsASignOfLife) {
  Patience patience{RetryPolicy()};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(WaitOut(patience, kNoTime), seconds(180));
    EXPECT_TRUE(patience.WaitForPlace(kNoTime).has_value());
  }
}

TEST(PatienceTest, TheWaitForAPlaceIsWhatWasAskedForCutToTheLimit) {
  RetryPolicy policy;
  policy.max_wait_for_a_place = seconds(60);
  Patience patience(policy);

  EXPECT_EQ(patience.WaitForPlace(seconds(40)), seconds(40));
  EXPECT_TRUE(patience.WaitUnanswered(kNoTime).has_value());
  EXPECT_EQ(patience.WaitForPlace(milliseconds::max()), seconds(20));
  EXPECT_EQ(patience.WaitForPlace(kNoTime), std::nullopt);
  EXPECT_EQ(patience.waited_for_a_place(), seconds(60));
}

}  // namespace
}  // namespace quire
