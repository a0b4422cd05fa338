// Times the scheduler core in a steady decode with a pool of 100,000 blocks. Timed are PlanStep,
// ApplyStepResult and TakeEvents of each step; stats, which the loop calls once a turn; and
// block_map, which it calls at most four times a second while somebody watches.
//
// Prints medians and 99th percentiles of single steps in microseconds. The core is meant to stay
// under 150 at 1,024 running sequences, block_map under 2,000. If a step log is named, each point
// runs a second time with its steps recorded, to show the cost of recording.
//
//   scheduler_core_bench [steps] [step log]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "scheduler/core/scheduler_core.h"
#include "scheduler/step_log/recorded_core.h"
#include "scheduler/step_log/step_log_file.h"

namespace quire {
namespace {

constexpr int32_t kNumBlocks = 100'001;
constexpr int32_t kPromptTokens = 128;
constexpr size_t kNumCells = 1021;  // of 98 blocks

Request RequestWithId(uint64_t id, int32_t num_steps) {
  Request request{.id = RequestId(id)};
  request.prompt_token_ids.assign(kPromptTokens, static_cast<TokenId>(id));
  request.max_tokens = num_steps;
  request.stop_token_ids = {1, 2};
  return request;
}

// The answer of an infinitely fast worker; making it is not part of the measured time.
StepResult Answer(const StepPlan& plan) {
  StepResult result{.header = plan.header, .plan_digest = plan.digest};
  for (const SequenceSlice& slice : plan.slices) {
    result.sampled.push_back({.handle = slice.handle, .token_id = 7});
  }
  return result;
}

double Percentile(std::vector<double> values, double fraction) {
  auto nth = values.begin() + static_cast<int64_t>(fraction * static_cast<double>(values.size()));
  std::nth_element(values.begin(), nth, values.end());
  return *nth;
}

void Print(const char* what, int32_t num_sequences, const std::vector<double>& values) {
  std::printf("%-12s %5d sequences  p50 %7.1f us  p99 %7.1f us\n",
              what,
              num_sequences,
              Percentile(values, 0.5),
              Percentile(values, 0.99));
}

void Run(int32_t num_sequences, int32_t num_steps, StepLogSink* log) {
  StepLimits limits{.num_blocks = kNumBlocks,
                    .block_size_tokens = 16,
                    .max_sequences = num_sequences,
                    .max_tokens_per_step = num_sequences * kPromptTokens,
                    .max_model_len = 1 << 16,
                    .vocab_size = 1000};
  RecordedCore core({.max_queued_requests = num_sequences, .watermark = 0.0}, {.sink = log});
  core.BeginEpoch(1, 1, limits, /*after_crash=*/false);
  for (int32_t i = 0; i < num_sequences; ++i) {
    AddOutcome outcome = core.AddRequest(RequestWithId(static_cast<uint64_t>(i) + 1, num_steps));
    if (outcome != AddOutcome::kQueued) {
      std::fprintf(stderr, "request %d refused: %d\n", i, static_cast<int>(outcome));
      std::exit(1);  // NOLINT(concurrency-mt-unsafe)
    }
  }
  std::vector<double> plan_us;
  std::vector<double> apply_us;
  std::vector<double> step_us;
  std::vector<double> stats_us;
  std::vector<double> map_us;
  for (int32_t step = 0; step < num_steps; ++step) {
    Instant begin = SteadyNow();
    std::optional<StepPlan> plan = core.PlanStep(begin);
    Instant planned = SteadyNow();
    StepResult result = Answer(*plan);
    Instant answered = SteadyNow();
    bool is_ok = core.ApplyStepResult(result).ok();
    std::vector<OutputEvent> events = core.TakeEvents();
    Instant applied = SteadyNow();
    const CoreStats stats = core.stats();
    Instant counted = SteadyNow();
    const BlockMap map = core.block_map({.max_cells = 1024, .max_holders = 24});
    Instant looked = SteadyNow();
    if (!is_ok || stats.num_steps != step + 1 || map.cells.size() != kNumCells ||
        events.size() < static_cast<size_t>(num_sequences)) {
      std::fprintf(stderr, "step %d went wrong\n", step);
      std::exit(1);  // NOLINT(concurrency-mt-unsafe)
    }
    if (step > 0 && step + 1 < num_steps) {  // the first is the prompts, the last the ends
      plan_us.push_back(static_cast<double>(planned - begin) / kNanosPerMicro);
      apply_us.push_back(static_cast<double>(applied - answered) / kNanosPerMicro);
      step_us.push_back(plan_us.back() + apply_us.back());
      stats_us.push_back(static_cast<double>(counted - applied) / kNanosPerMicro);
      map_us.push_back(static_cast<double>(looked - counted) / kNanosPerMicro);
    }
  }
  Print("plan", num_sequences, plan_us);
  Print("apply", num_sequences, apply_us);
  Print("plan + apply", num_sequences, step_us);
  Print("stats", num_sequences, stats_us);
  Print("block map", num_sequences, map_us);
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  const int num_steps = argc > 1 ? std::atoi(argv[1]) : 1000;
  if (num_steps < 3) {
    std::fprintf(stderr, "steps: at least 3\n");
    return 1;
  }
  for (const int32_t num_sequences : {64, 1024}) {
    quire::Run(num_sequences, num_steps, nullptr);
    if (argc > 2) {
      quire::StepLogFile log(argv[2]);
      if (const absl::Status status = log.Open(); !status.ok()) {
        std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
        return 1;
      }
      std::printf("recorded:\n");
      quire::Run(num_sequences, num_steps, &log);
    }
  }
  return 0;
}
