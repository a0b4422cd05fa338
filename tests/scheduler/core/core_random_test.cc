// Random histories of the core, each a function of its seed. A failure names the seed; run one with
//   QUIRE_SEED=<seed> <test>, and more of them with QUIRE_NUM_SEEDS=<n>.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "gtest/gtest.h"

#include "tests/scheduler/core/core_simulation.h"
#include "tests/support/crash_note.h"

namespace quire {
namespace {

constexpr int32_t kEventsPerSeed = 500;
constexpr uint64_t kNumSeeds = 8000;

// Histories that failed once, here or in core_soak, and are not among the first kNumSeeds. A change
// of the simulation's draws gives a seed another history; the seeds are kept all the same.
struct FailedHistory {
  uint64_t seed;
  int32_t num_events;
};
constexpr FailedHistory kFailedHistories[] = {
    {84, 3100},  // two groups that shared a block swapped it out in one step
    {3'001'654,
     400},            // beams that came back counted more copies of their last block than they take
    {200'186, 1100},  // a sequence of a group found free cached blocks instead of its group's
    {19'411, 120},    // a crash on the way to where a request had crashed made that forgotten
    {23'650, 300},    // crashes of two sequences of a request in turns were not added up
    {75'792, 3100},   // one was passed that was to share what others of its request had computed
};

uint64_t NumberFromEnvironment(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

class CoreRandomTest : public ::testing::Test {
 protected:
  static void Run(CoreSimulation& simulation, uint64_t seed, int32_t num_events = kEventsPerSeed) {
    SetCrashNote("QUIRE_SEED=" + std::to_string(seed));
    ASSERT_EQ(simulation.Run(num_events), "") << "QUIRE_SEED=" << seed;
    ASSERT_EQ(simulation.Drain(), "") << "QUIRE_SEED=" << seed;
    SetCrashNote("");
  }
};

TEST_F(CoreRandomTest, KeepsEveryInvariantThroughRandomHistories) {
  uint64_t first = NumberFromEnvironment("QUIRE_SEED", 1);
  const bool is_one_seed = std::getenv("QUIRE_SEED") != nullptr;  // NOLINT(concurrency-mt-unsafe)
  uint64_t num_seeds = NumberFromEnvironment("QUIRE_NUM_SEEDS", is_one_seed ? 1 : kNumSeeds);
  int64_t num_events = 0;
  int64_t num_preemptions = 0;
  int64_t num_recomputed = 0;
  int64_t num_swaps = 0;
  int64_t num_swapped_in = 0;
  int64_t num_failed_swap_ins = 0;
  int64_t num_prefix_hits = 0;
  int64_t num_copies = 0;
  int64_t num_longer_than_pool = 0;
  int64_t num_passed_blocks = 0;
  int64_t num_scored = 0;
  int64_t num_resumed_tokens = 0;
  int64_t num_unreachable = 0;
  int64_t num_appended = 0;
  int64_t num_foreseen = 0;
  int64_t num_blocks_stored = 0;
  int64_t num_blocks_removed = 0;
  int64_t num_blocks_private = 0;
  int64_t num_finished[9] = {};
  for (uint64_t seed = first; seed < first + num_seeds; ++seed) {
    CoreSimulation simulation(seed);

    Run(simulation, seed);

    if (HasFatalFailure()) {
      return;
    }
    num_events += simulation.num_events();
    num_preemptions += simulation.totals().num_preemptions;
    num_recomputed += simulation.totals().num_recomputed_tokens;
    num_swaps += simulation.totals().num_swap_preemptions;
    num_swapped_in += simulation.totals().num_blocks_swapped_in;
    num_failed_swap_ins += simulation.totals().num_failed_swap_ins;
    num_prefix_hits += simulation.totals().num_prefix_hit_tokens;
    num_copies += simulation.totals().num_blocks_copied;
    num_longer_than_pool += simulation.num_longer_than_pool();
    num_passed_blocks += simulation.num_passed_blocks();
    num_scored += simulation.num_scored();
    num_resumed_tokens += simulation.num_resumed_tokens();
    num_unreachable += simulation.num_unreachable();
    num_appended += simulation.num_appended();
    num_foreseen += simulation.num_foreseen();
    num_blocks_stored += simulation.cache_events().num_stored();
    num_blocks_removed += simulation.cache_events().num_removed();
    num_blocks_private += simulation.cache_events().num_private();
    for (int reason = 0; reason < 9; ++reason) {
      num_finished[reason] += simulation.num_finished(static_cast<FinishReason>(reason));
    }
  }
  std::printf("seeds %llu..%llu: %lld events, %lld preemptions, %lld tokens recomputed\n",
              static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first + num_seeds - 1),
              static_cast<long long>(num_events),
              static_cast<long long>(num_preemptions),
              static_cast<long long>(num_recomputed));
  std::printf("  %lld of %lld blocks foreseen\n",
              static_cast<long long>(num_foreseen),
              static_cast<long long>(num_appended));
  std::printf("  %lld blocks stored, %lld removed, %lld private\n",
              static_cast<long long>(num_blocks_stored),
              static_cast<long long>(num_blocks_removed),
              static_cast<long long>(num_blocks_private));
  for (int reason = 0; reason < 9; ++reason) {
    std::printf("  finish reason %d: %lld sequences\n",
                reason,
                static_cast<long long>(num_finished[reason]));
    // A history in which something never happens proves nothing about it.
    EXPECT_TRUE(num_seeds < kNumSeeds || num_finished[reason] > 100) << reason;
  }
  EXPECT_TRUE(num_seeds < kNumSeeds || num_preemptions > 1000);
  EXPECT_TRUE(num_seeds < kNumSeeds || num_swaps > 1000) << num_swaps;
  EXPECT_TRUE(num_seeds < kNumSeeds || num_swapped_in > 1000) << num_swapped_in;
  EXPECT_TRUE(num_seeds < kNumSeeds || num_failed_swap_ins > 500) << num_failed_swap_ins;
  EXPECT_TRUE(num_seeds < kNumSeeds || num_copies > 1000) << num_copies;
  EXPECT_TRUE(num_seeds < kNumSeeds || num_prefix_hits > 20'000) << num_prefix_hits;
  EXPECT_TRUE(num_seeds < kNumSeeds || num_longer_than_pool > 1000) << num_longer_than_pool;
  EXPECT_TRUE(num_seeds < kNumSeeds || num_passed_blocks > 1000) << num_passed_blocks;
  EXPECT_TRUE(num_seeds < kNumSeeds || num_scored > 1000) << num_scored;
  EXPECT_TRUE(num_seeds < kNumSeeds || num_resumed_tokens > 20'000) << num_resumed_tokens;
  EXPECT_TRUE(num_seeds < kNumSeeds || num_unreachable > 1000) << num_unreachable;
  EXPECT_TRUE(num_seeds < kNumSeeds || num_blocks_stored > 100'000) << num_blocks_stored;
  EXPECT_TRUE(num_seeds < kNumSeeds || num_blocks_removed > 50'000) << num_blocks_removed;
  EXPECT_TRUE(num_seeds < kNumSeeds || num_blocks_private > 1000) << num_blocks_private;
  EXPECT_TRUE(num_seeds < kNumSeeds || 2 * num_foreseen > num_appended) << num_foreseen;
}

TEST_F(CoreRandomTest, HistoriesThatFailedOncePass) {
  for (const FailedHistory& history : kFailedHistories) {
    CoreSimulation simulation(history.seed);
    Run(simulation, history.seed, history.num_events);
  }
}

TEST_F(CoreRandomTest, NextBlocksAreHintsAndChangeNothing) {
  int64_t num_foreseen = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CoreSimulation with(seed);
    with.WantNextBlocks(true);
    CoreSimulation without(seed);
    without.WantNextBlocks(false);

    Run(with, seed);
    Run(without, seed);

    ASSERT_EQ(with.trace_hash(), without.trace_hash()) << "QUIRE_SEED=" << seed;
    num_foreseen += with.num_foreseen();
  }
  EXPECT_GT(num_foreseen, 500);
}

// Same seed, same trace: nothing in the core depends on addresses or on iteration order.
TEST_F(CoreRandomTest, IsAFunctionOfItsEvents) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CoreSimulation first(seed);
    CoreSimulation second(seed);

    Run(first, seed);
    Run(second, seed);

    ASSERT_EQ(first.trace_hash(), second.trace_hash()) << "QUIRE_SEED=" << seed;
  }
}

}  // namespace
}  // namespace quire
