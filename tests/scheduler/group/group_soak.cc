// group_soak simulates many hours of a worker group of 1 to 8 ranks and its core, with faults of
// ranks. Each seed is a separate history of ten minutes.
//
//   group_soak --hours 1000
//   group_soak --seed 4711          # one seed again
//
// Hours are virtual time. Stops at the first violation with exit code 1, or by the signal of a
// failed check; both print the seed, the hours simulated before it, and the command that repeats
// it.
#include <unistd.h>

#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"

#include "common/base/clock.h"
#include "common/flags/command_line.h"
#include "tests/scheduler/group/group_simulation.h"
#include "tests/support/crash_note.h"

ABSL_FLAG(double, hours, 1, "virtual time to simulate");
ABSL_FLAG(uint64_t, first_seed, 1, "seeds count up from here");
ABSL_FLAG(uint64_t, seed, 0, "simulate this seed only");

namespace quire {
namespace {

constexpr unsigned kMaxSecondsPerSeed = 120;  // real time; longer counts as an endless loop
constexpr Instant kTimePerSeed = 600 * kNanosPerSecond;
constexpr double kNanosPerHour = 3600.0 * kNanosPerSecond;

void Add(const GroupSimulation::Totals& one, GroupSimulation::Totals& all) {
  all.elapsed += one.elapsed;
  all.num_faults += one.num_faults;
  all.num_epochs += one.num_epochs;
  all.num_losses += one.num_losses;
  all.num_refusals += one.num_refusals;
  all.num_crashes += one.num_crashes;
  all.num_takeovers += one.num_takeovers;
  all.num_stale += one.num_stale;
  all.num_spoiled_found += one.num_spoiled_found;
  all.num_failed_swap_ins += one.num_failed_swap_ins;
  all.num_steps += one.num_steps;
  all.num_requests += one.num_requests;
  all.num_tokens += one.num_tokens;
}

double Hours(const GroupSimulation::Totals& totals) {
  return static_cast<double>(totals.elapsed) / kNanosPerHour;
}

void Print(const GroupSimulation::Totals& totals, uint64_t num_seeds, double seconds) {
  absl::PrintF("%.1f simulated hours of %d groups of 1 to 8 ranks in %.1f minutes\n",
               Hours(totals),
               num_seeds,
               seconds / 60);
  absl::PrintF("%d faults, %d epochs, %d of them lost, %d by crashes, %d workers refused\n",
               totals.num_faults,
               totals.num_epochs,
               totals.num_losses,
               totals.num_crashes,
               totals.num_refusals);
  absl::PrintF("%d schedulers superseded\n", totals.num_takeovers);
  absl::PrintF("%d stale answers, %d groups whose ranks differed, %d failed swap-ins\n",
               totals.num_stale,
               totals.num_spoiled_found,
               totals.num_failed_swap_ins);
  absl::PrintF("%d requests, %d steps, %d tokens\n0 violations\n",
               totals.num_requests,
               totals.num_steps,
               totals.num_tokens);
}

// Prints a violation and returns false after it.
bool SimulateSeed(uint64_t seed, GroupSimulation::Totals& totals) {
  const std::string note = absl::StrFormat(
      "FAILED seed=%d after_hours=%.2f: group_soak --seed %d", seed, Hours(totals), seed);
  SetCrashNote(note);
  alarm(kMaxSecondsPerSeed);
  GroupSimulation simulation(seed);
  std::string fault = simulation.Run(kTimePerSeed);
  fault = fault.empty() ? simulation.Drain() : fault;
  if (!fault.empty()) {
    absl::FPrintF(stderr, "%s\n%s\n", fault, note);
    return false;
  }
  Add(simulation.totals(), totals);
  return true;
}

int Run() {
  GroupSimulation::Totals totals;
  if (const uint64_t only_seed = absl::GetFlag(FLAGS_seed); only_seed != 0) {
    return SimulateSeed(only_seed, totals) ? 0 : 1;
  }
  const Instant begin = SteadyNow();
  const uint64_t first = absl::GetFlag(FLAGS_first_seed);
  uint64_t seed = first;
  for (; Hours(totals) < absl::GetFlag(FLAGS_hours); ++seed) {
    if (!SimulateSeed(seed, totals)) {
      return 1;
    }
  }
  Print(totals, seed - first, static_cast<double>(SteadyNow() - begin) / kNanosPerSecond);
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  quire::ParseCommandLineOrExit(
      argc,
      argv,
      {.name = "group_soak",
       .usage = "[--hours H] [--first-seed N] [--seed N]",
       .summary = "Simulates many hours of worker groups with faults of ranks."});
  return quire::Run();
}
