// Requests of several sequences and beams in the simulator.
#include "gtest/gtest.h"

#include "scheduler/sim/simulation.h"
#include "scheduler/sim/trace.h"

namespace quire {
namespace {

SimConfig Config(int32_t num_sequences, int32_t num_beams) {
  SimConfig config = {.platform = *FindPlatform("a100-opt-13b")};
  config.block_size_tokens = 4;
  config.num_sequences = num_sequences;
  config.num_beams = num_beams;
  config.checks_invariants = true;
  return config;
}

// The request itself, then one late enough that nothing overlaps; only the first is measured.
Trace TraceOf(int32_t prompt_tokens, int32_t output_tokens) {
  Trace trace;
  trace.requests.push_back({.prompt_tokens = prompt_tokens, .output_tokens = output_tokens});
  trace.requests.push_back({.arrival = 1000 * kNanosPerSecond,
                            .prompt_tokens = prompt_tokens,
                            .output_tokens = output_tokens});
  return trace;
}

TEST(SharingTest, SequencesOfOneTokenShareTheWholePromptButItsLastBlock) {
  // The first step computes 9 tokens in 3 blocks, the second one token of each fork, the third the
  // others' second. Then: blocks 0 and 1 shared by all, one block each.
  absl::StatusOr<SimResult> result = RunSimulation(Config(4, 1), TraceOf(9, 3));
  ASSERT_TRUE(result.ok()) << result.status();
  // Without sharing 12 blocks, with it 6; in the first step nothing is shared.
  EXPECT_GT(result->mean_saved_share, 0.25);
  EXPECT_LT(result->mean_saved_share, 0.5);
}

TEST(SharingTest, ASequenceAloneSavesNothing) {
  absl::StatusOr<SimResult> result = RunSimulation(Config(1, 1), TraceOf(9, 30));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->mean_saved_share, 0);
}

TEST(SharingTest, BeamsGoOnSharingWhatTheyMake) {
  absl::StatusOr<SimResult> samples = RunSimulation(Config(4, 1), TraceOf(9, 60));
  absl::StatusOr<SimResult> beams = RunSimulation(Config(1, 4), TraceOf(9, 60));
  ASSERT_TRUE(samples.ok() && beams.ok());
  EXPECT_GT(beams->mean_saved_share, 2 * samples->mean_saved_share);
}

TEST(SharingTest, WhatTheCoreCannotDoIsRefused) {
  const Trace trace = TraceOf(9, 3);
  EXPECT_FALSE(RunSimulation(Config(2, 2), trace).ok());
  EXPECT_FALSE(RunSimulation(Config(1, 11), trace).ok());
  EXPECT_FALSE(RunSimulation(Config(0, 1), trace).ok());
  EXPECT_FALSE(RunSimulation(Config(300, 1), trace).ok());
}

// Seven contexts of 2,048 fit 15,728 slots; eight would be 16,384.
TEST(SharingTest, OrcaNeedsARunForEachSequenceAtOnce) {
  SimConfig orca = Config(7, 1);
  orca.policy = MemoryPolicy::kOrcaMax;
  absl::StatusOr<SimResult> fits = RunSimulation(orca, TraceOf(9, 3));
  ASSERT_TRUE(fits.ok()) << fits.status();
  EXPECT_EQ(fits->num_steps, 6);  // each request: the prompts, and two tokens more of all

  orca.num_sequences = 8;
  EXPECT_EQ(RunSimulation(orca, TraceOf(9, 3)).status().code(), absl::StatusCode::kInvalidArgument);
  orca.policy = MemoryPolicy::kOrcaOracle;
  EXPECT_TRUE(RunSimulation(orca, TraceOf(9, 3)).ok());

  // Eight copies of 320 tokens are a whole step.
  EXPECT_TRUE(RunSimulation(orca, TraceOf(320, 3)).ok());
  EXPECT_FALSE(RunSimulation(orca, TraceOf(321, 3)).ok());
}

}  // namespace
}  // namespace quire
