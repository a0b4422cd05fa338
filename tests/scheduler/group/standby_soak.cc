// standby_soak simulates many hours of 2 to 4 schedulers that share ranks, with faults of
// schedulers, ranks and the network. Each seed is a separate history of ten minutes.
//
//   standby_soak --hours 100
//   standby_soak --seed 4711          # one seed again
//
// Hours are virtual time. Stops at the first violation with exit code 1, or by the signal of a
// failed check; both print the seed, the hours simulated before it, and the command that repeats
// it.
#include <unistd.h>

#include <algorithm>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"

#include "common/base/clock.h"
#include "common/flags/command_line.h"
#include "tests/scheduler/group/standby_simulation.h"
#include "tests/support/crash_note.h"

ABSL_FLAG(double, hours, 1, "virtual time to simulate");
ABSL_FLAG(uint64_t, first_seed, 1, "seeds count up from here");
ABSL_FLAG(uint64_t, seed, 0, "simulate this seed only");
ABSL_FLAG(bool, verbose, false, "print what happens");

namespace quire {
namespace {

constexpr unsigned kMaxSecondsPerSeed = 120;  // real time; longer counts as an endless loop
constexpr Instant kTimePerSeed = 600 * kNanosPerSecond;
constexpr double kNanosPerHour = 3600.0 * kNanosPerSecond;

void Add(const StandbySimulation::Totals& one, StandbySimulation::Totals& all) {
  all.elapsed += one.elapsed;
  all.num_faults += one.num_faults;
  all.num_starts += one.num_starts;
  all.num_ready += one.num_ready;
  all.num_takeovers += one.num_takeovers;
  all.num_standbys += one.num_standbys;
  all.num_superseded += one.num_superseded;
  all.num_renamed += one.num_renamed;
  all.num_overlaps += one.num_overlaps;
  all.num_commits += one.num_commits;
  all.num_refused_steps += one.num_refused_steps;
  all.longest_overlap = std::max(all.longest_overlap, one.longest_overlap);
  all.longest_gap = std::max(all.longest_gap, one.longest_gap);
}

double Hours(const StandbySimulation::Totals& totals) {
  return static_cast<double>(totals.elapsed) / kNanosPerHour;
}

void Print(const StandbySimulation::Totals& totals, uint64_t num_seeds, double seconds) {
  absl::PrintF("%.1f simulated hours of %d groups of 2 to 4 schedulers in %.1f minutes\n",
               Hours(totals),
               num_seeds,
               seconds / 60);
  absl::PrintF("%d faults, %d starts of schedulers, %d epochs, %d of them after a takeover\n",
               totals.num_faults,
               totals.num_starts,
               totals.num_ready,
               totals.num_takeovers);
  absl::PrintF(
      "%d stood by, %d were superseded, %d asked under another number than their clock's\n",
      totals.num_standbys,
      totals.num_superseded,
      totals.num_renamed);
  absl::PrintF(
      "%d commits, %d steps refused or broken off\n", totals.num_commits, totals.num_refused_steps);
  absl::PrintF("two ready at one moment: %d times, at most %d ms; none ready: at most %d ms\n",
               totals.num_overlaps,
               totals.longest_overlap / kNanosPerMilli,
               totals.longest_gap / kNanosPerMilli);
  absl::PrintF("0 violations\n");
}

// Prints a violation and returns false after it.
bool SimulateSeed(uint64_t seed, StandbySimulation::Totals& totals) {
  const std::string note = absl::StrFormat(
      "FAILED seed=%d after_hours=%.2f: standby_soak --seed %d", seed, Hours(totals), seed);
  SetCrashNote(note);
  alarm(kMaxSecondsPerSeed);
  StandbySimulation::Setup setup = StandbySimulation::DrawSetup(seed);
  setup.is_verbose = absl::GetFlag(FLAGS_verbose);
  StandbySimulation simulation(setup, seed);
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
  StandbySimulation::Totals totals;
  const Instant begin = SteadyNow();
  const uint64_t only_seed = absl::GetFlag(FLAGS_seed);
  const uint64_t first = only_seed != 0 ? only_seed : absl::GetFlag(FLAGS_first_seed);
  const double hours = only_seed != 0 ? 0.01 : absl::GetFlag(FLAGS_hours);
  uint64_t seed = first;
  for (; Hours(totals) < hours; ++seed) {
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
  quire::ParseCommandLineOrExit(argc,
                                argv,
                                {.name = "standby_soak",
                                 .usage = "[--hours H] [--first-seed N] [--seed N] [--verbose]",
                                 .summary = "Simulates many hours of several schedulers that have "
                                            "the same ranks, with faults."});
  return quire::Run();
}
