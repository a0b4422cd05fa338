// Random histories of several schedulers that share ranks; a seed determines each history. A
// failure names the seed. Repeat it with
//   standby_soak --seed <seed>
#include <algorithm>
#include <string>

#include "gtest/gtest.h"

#include "tests/scheduler/group/standby_simulation.h"
#include "tests/support/crash_note.h"

namespace quire {
namespace {

// The seeds and the time of standby_soak; these seeds find every bug of standby_bugs.py.
constexpr uint64_t kNumSeeds = 30;
constexpr Instant kTime = 600 * kNanosPerSecond;

TEST(StandbyRandomTest, OfSeveralSchedulersOneCommitsThroughRandomHistories) {
  StandbySimulation::Totals all;
  for (uint64_t seed = 1; seed <= kNumSeeds; ++seed) {
    SetCrashNote("standby_soak --seed " + std::to_string(seed));
    StandbySimulation simulation(StandbySimulation::DrawSetup(seed), seed);
    ASSERT_EQ(simulation.Run(kTime), "") << "seed " << seed;
    ASSERT_EQ(simulation.Drain(), "") << "seed " << seed;
    const StandbySimulation::Totals& totals = simulation.totals();
    all.num_faults += totals.num_faults;
    all.num_takeovers += totals.num_takeovers;
    all.num_standbys += totals.num_standbys;
    all.num_superseded += totals.num_superseded;
    all.num_renamed += totals.num_renamed;
    all.num_overlaps += totals.num_overlaps;
    all.num_refused_steps += totals.num_refused_steps;
    all.num_commits += totals.num_commits;
  }
  SetCrashNote("");
  // Events that never happen are not tested.
  EXPECT_GT(all.num_faults, 1000);
  EXPECT_GT(all.num_takeovers, 200);
  EXPECT_GT(all.num_standbys, 500);
  EXPECT_GT(all.num_superseded, 50);
  EXPECT_GT(all.num_renamed, 50);
  EXPECT_GT(all.num_overlaps, 20);
  EXPECT_GT(all.num_refused_steps, 50);
  EXPECT_GT(all.num_commits, 10'000);
}

// Regression: in one to three of ten starts, two schedulers that started together ended each
// other's epochs for as long as both lived.
class StartTogetherTest : public testing::TestWithParam<std::pair<int32_t, int32_t>> {};

TEST_P(StartTogetherTest, ExactlyOneServesWithinTwoSecondsAndTheOthersStandBy) {
  const auto [num_schedulers, num_ranks] = GetParam();
  const int num_seeds = num_schedulers == 2 ? 1000 : 100;
  for (int seed = 1; seed <= num_seeds; ++seed) {
    const StandbySimulation::Setup setup = {.num_schedulers = num_schedulers,
                                            .num_ranks = num_ranks,
                                            .start_spread = 10 * kNanosPerMilli,
                                            .has_faults = false};
    StandbySimulation simulation(setup, static_cast<uint64_t>(seed));
    ASSERT_EQ(simulation.Run(2 * kNanosPerSecond), "") << "seed " << seed;
    ASSERT_TRUE(simulation.IsSettled()) << "seed " << seed;
    const int64_t num_ready = simulation.totals().num_ready;
    ASSERT_EQ(simulation.Run(6 * kNanosPerSecond), "") << "seed " << seed;
    ASSERT_TRUE(simulation.IsSettled()) << "seed " << seed;
    ASSERT_EQ(simulation.totals().num_ready, num_ready) << "it stays so; seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Pairs,
                         StartTogetherTest,
                         testing::Values(std::pair(2, 1), std::pair(2, 2), std::pair(2, 4)));
INSTANTIATE_TEST_SUITE_P(Fours,
                         StartTogetherTest,
                         testing::Values(std::pair(4, 1), std::pair(4, 2), std::pair(4, 4)));

// Equal seeds give equal traces: nothing may depend on addresses.
TEST(StandbyRandomTest, IsAFunctionOfItsSeed) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    StandbySimulation first(StandbySimulation::DrawSetup(seed), seed);
    StandbySimulation second(StandbySimulation::DrawSetup(seed), seed);

    ASSERT_EQ(first.Run(kTime), "");
    ASSERT_EQ(second.Run(kTime), "");

    EXPECT_EQ(first.trace_hash(), second.trace_hash()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace quire
