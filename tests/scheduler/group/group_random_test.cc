// Random histories of the worker group and the core; a seed determines each history. A failure
// names the seed. Repeat it with
//   group_soak --seed <seed>
#include <cstdio>
#include <string>

#include "gtest/gtest.h"

#include "tests/scheduler/group/group_simulation.h"
#include "tests/support/crash_note.h"

namespace quire {
namespace {

// The seeds and the time of group_soak; these seeds find every bug of group_bugs.py.
constexpr uint64_t kNumSeeds = 40;
constexpr Instant kTime = 600 * kNanosPerSecond;

TEST(GroupRandomTest, NoFaultOfARankChangesOrLosesATokenThroughRandomHistories) {
  GroupSimulation::Totals all;
  for (uint64_t seed = 1; seed <= kNumSeeds; ++seed) {
    SetCrashNote("group_soak --seed " + std::to_string(seed));
    GroupSimulation simulation(seed);
    ASSERT_EQ(simulation.Run(kTime), "") << "seed " << seed;
    ASSERT_EQ(simulation.Drain(), "") << "seed " << seed;
    const GroupSimulation::Totals totals = simulation.totals();
    all.num_faults += totals.num_faults;
    all.num_losses += totals.num_losses;
    all.num_crashes += totals.num_crashes;
    all.num_takeovers += totals.num_takeovers;
    all.num_refusals += totals.num_refusals;
    all.num_stale += totals.num_stale;
    all.num_spoiled_found += totals.num_spoiled_found;
    all.num_failed_swap_ins += totals.num_failed_swap_ins;
    all.num_tokens += totals.num_tokens;
  }
  SetCrashNote("");
  // Events that never happen are not tested.
  EXPECT_GT(all.num_faults, 500);
  EXPECT_GT(all.num_losses, 200);
  EXPECT_GT(all.num_crashes, 100);
  EXPECT_GT(all.num_takeovers, 20);
  EXPECT_GT(all.num_refusals, 100);
  EXPECT_GT(all.num_stale, 100);
  EXPECT_GT(all.num_spoiled_found, 20);
  EXPECT_GT(all.num_failed_swap_ins, 30);
  EXPECT_GT(all.num_tokens, 50'000);
}

// Equal seeds give equal traces: group and core must not depend on addresses.
TEST(GroupRandomTest, IsAFunctionOfItsSeed) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    GroupSimulation first(seed);
    GroupSimulation second(seed);

    ASSERT_EQ(first.Run(kTime), "");
    ASSERT_EQ(second.Run(kTime), "");

    EXPECT_EQ(first.trace_hash(), second.trace_hash()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace quire
