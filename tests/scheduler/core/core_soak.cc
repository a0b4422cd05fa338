// core_soak: many simulated hours of the scheduler core, each seed a history of its own.
//
//   core_soak --hours 1000                 # until so much virtual time has been spent in steps
//   core_soak --seed 4711                  # one seed again
//
// Only steps count as simulated time, not the time in which nothing is asked for or workers are
// away: a step takes 5 to 50 ms, drawn by seed, and more for its tokens.
//
// Stops at the first violation with exit code 1, or by the signal of a check inside the core; both
// print the seed, how much had been simulated before it, and the command that repeats it.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "common/base/clock.h"
#include "common/flags/command_line.h"
#include "tests/scheduler/core/core_simulation.h"
#include "tests/support/crash_note.h"

ABSL_FLAG(double, hours, 1, "virtual time in steps to simulate");
ABSL_FLAG(uint64_t, first_seed, 1, "seeds count up from here");
ABSL_FLAG(uint64_t, seed, 0, "simulate this seed only");
ABSL_FLAG(int, repeat_every, 10, "every so many seeds is run twice and must leave the same trace");

namespace quire {
namespace {

// A history that takes longer hangs: the longest takes about a second.
constexpr unsigned kMaxSecondsPerSeed = 120;
constexpr double kNanosPerHour = 3600.0 * kNanosPerSecond;

struct Totals {
  int64_t num_seeds = 0;
  int64_t num_events = 0;
  Instant elapsed = 0;
  Instant time_in_steps = 0;
  CoreStats stats;

  double hours() const { return static_cast<double>(time_in_steps) / kNanosPerHour; }
};

// Short histories and long ones: 0.2 to 4 thousand events.
int32_t NumEvents(uint64_t seed) { return Random(~seed).Between(200, 4000); }

void Add(const CoreSimulation& simulation, Totals& totals) {
  const CoreStats& stats = simulation.totals();
  ++totals.num_seeds;
  totals.num_events += simulation.num_events();
  totals.elapsed += simulation.elapsed();
  totals.time_in_steps += simulation.time_in_steps();
  totals.stats.num_steps += stats.num_steps;
  totals.stats.num_tokens_committed += stats.num_tokens_committed;
  totals.stats.num_requests_finished += stats.num_requests_finished;
  totals.stats.num_preemptions += stats.num_preemptions;
  totals.stats.num_swap_preemptions += stats.num_swap_preemptions;
  totals.stats.num_blocks_swapped_in += stats.num_blocks_swapped_in;
  totals.stats.num_failed_swap_ins += stats.num_failed_swap_ins;
  totals.stats.num_blocks_copied += stats.num_blocks_copied;
  totals.stats.num_prefix_hit_tokens += stats.num_prefix_hit_tokens;
  totals.stats.num_recomputed_tokens += stats.num_recomputed_tokens;
  totals.stats.num_non_finite += stats.num_non_finite;
}

void Print(const Totals& totals, double seconds) {
  const CoreStats& stats = totals.stats;
  absl::PrintF(
      "%.1f simulated hours of steps (%.1f with idle ones) in %.1f minutes: %.0f a minute\n",
      totals.hours(),
      static_cast<double>(totals.elapsed) / kNanosPerHour,
      seconds / 60,
      totals.hours() * 60 / seconds);
  absl::PrintF("%d seeds, %d events, %d steps, %d requests, %d tokens committed\n",
               totals.num_seeds,
               totals.num_events,
               stats.num_steps,
               stats.num_requests_finished,
               stats.num_tokens_committed);
  absl::PrintF(
      "%d preemptions, %d of them by swap; %d blocks swapped in, %d of them lost, %d copied\n",
      stats.num_preemptions,
      stats.num_swap_preemptions,
      stats.num_blocks_swapped_in,
      stats.num_failed_swap_ins,
      stats.num_blocks_copied);
  absl::PrintF("%d tokens recomputed, %d found in the prefix cache; %d rows not finite\n",
               stats.num_recomputed_tokens,
               stats.num_prefix_hit_tokens,
               stats.num_non_finite);
}

std::string Simulate(CoreSimulation& simulation, uint64_t seed) {
  std::string fault = simulation.Run(NumEvents(seed));
  return fault.empty() ? simulation.Drain() : fault;
}

// False after a violation, which is printed.
bool SimulateSeed(uint64_t seed, bool is_repeated, Totals& totals) {
  const std::string note = absl::StrFormat(
      "FAILED seed=%d after_hours=%.2f: core_soak --seed %d", seed, totals.hours(), seed);
  SetCrashNote(note);
  alarm(kMaxSecondsPerSeed);
  CoreSimulation simulation(seed);
  std::string fault = Simulate(simulation, seed);
  if (fault.empty() && is_repeated) {
    CoreSimulation again(seed);
    fault = Simulate(again, seed);
    if (fault.empty() && again.trace_hash() != simulation.trace_hash()) {
      fault = "not so: the same seed leaves the same trace";
    }
  }
  if (!fault.empty()) {
    absl::FPrintF(stderr, "%s\n%s\n", fault, note);
    return false;
  }
  Add(simulation, totals);
  return true;
}

int Run() {
  const uint64_t only_seed = absl::GetFlag(FLAGS_seed);
  const auto repeat_every = static_cast<uint64_t>(std::max(1, absl::GetFlag(FLAGS_repeat_every)));
  Totals totals;
  if (only_seed != 0) {
    return SimulateSeed(only_seed, /*is_repeated=*/true, totals) ? 0 : 1;
  }
  const Instant begin = SteadyNow();
  for (uint64_t seed = absl::GetFlag(FLAGS_first_seed); totals.hours() < absl::GetFlag(FLAGS_hours);
       ++seed) {
    if (!SimulateSeed(seed, seed % repeat_every == 0, totals)) {
      return 1;
    }
  }
  Print(totals, static_cast<double>(SteadyNow() - begin) / kNanosPerSecond);
  absl::PrintF("0 violations, 0 blocks leaked\n");
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  quire::ParseCommandLineOrExit(
      argc,
      argv,
      {.name = "core_soak",
       .usage = "[--hours H] [--first-seed N] [--seed N]",
       .summary = "Simulates many hours of the scheduler core and checks every invariant."});
  return quire::Run();
}
