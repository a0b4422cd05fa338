#include "deploy/cli/restart_policy.h"

#include <vector>

#include "gtest/gtest.h"

namespace quire {
namespace {

// A process that lives for so long, `now` later.
int64_t LiveAndEnd(RestartPolicy* policy, Instant* now, int64_t lifetime_ns, bool is_useful) {
  policy->OnStart(*now);
  if (is_useful) {
    policy->OnUseful();
  }
  *now += lifetime_ns;
  return policy->OnEnd(*now);
}

std::vector<int64_t> PausesMs(int num_starts, int64_t lifetime_ns, bool is_useful) {
  RestartPolicy policy;
  Instant now = 77 * kNanosPerSecond;
  std::vector<int64_t> pauses;
  for (int i = 0; i < num_starts; ++i) {
    pauses.push_back(LiveAndEnd(&policy, &now, lifetime_ns, is_useful) / kNanosPerMilli);
  }
  return pauses;
}

TEST(RestartPolicyTest, UselessStartsDoubleThePauseUpToTenSeconds) {
  EXPECT_EQ(PausesMs(10, kNanosPerMilli, /*is_useful=*/false),
            (std::vector<int64_t>{100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000, 10000}));
}

TEST(RestartPolicyTest, UsefulStartsNeverWaitLong) {
  EXPECT_EQ(PausesMs(5, kNanosPerMilli, /*is_useful=*/true), std::vector<int64_t>(5, 100));
}

TEST(RestartPolicyTest, AUsefulStartEndsTheBackoff) {
  RestartPolicy policy;
  Instant now = 0;
  for (int i = 0; i < 5; ++i) {
    LiveAndEnd(&policy, &now, kNanosPerMilli, /*is_useful=*/false);
  }

  EXPECT_EQ(LiveAndEnd(&policy, &now, 0, /*is_useful=*/true), 100 * kNanosPerMilli);
  EXPECT_EQ(LiveAndEnd(&policy, &now, 0, /*is_useful=*/false), 100 * kNanosPerMilli);
  EXPECT_EQ(LiveAndEnd(&policy, &now, 0, /*is_useful=*/false), 200 * kNanosPerMilli);
}

// An idle server whose worker is killed now and then: no pause would slow such a loop down.
TEST(RestartPolicyTest, AnIdleProcessThatLivedLongIsStartedSoon) {
  EXPECT_EQ(PausesMs(5, RestartPolicy::kMaxPauseNs, /*is_useful=*/false),
            std::vector<int64_t>(5, 100));
}

TEST(RestartPolicyTest, UseBelongsToOneStart) {
  RestartPolicy policy;
  policy.OnStart(0);
  policy.OnUseful();
  policy.OnEnd(1);

  policy.OnStart(2);

  EXPECT_FALSE(policy.is_useful());
}

}  // namespace
}  // namespace quire
