#include "scheduler/sim/simulation.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/math.h"
#include "common/base/status_macros.h"
#include "common/step/step_plan_check.h"
#include "scheduler/core/beam_search.h"
#include "scheduler/sim/paged_engine.h"
#include "scheduler/sim/reserving_engine.h"
#include "scheduler/sim/static_batch_engine.h"

namespace quire {
namespace {

// Averages steps over the time until the last arrival. Later steps run ever smaller batches, which
// say nothing about the load. If all requests arrive at the start, averages over the whole time.
class Meter {
 public:
  explicit Meter(Instant last_arrival)
      : end_(last_arrival > 0 ? last_arrival : std::numeric_limits<Instant>::max()) {}

  void Add(Instant begin, Instant end, const EngineStep& step) {
    const double weight = static_cast<double>(std::min(end, end_) - begin);
    if (weight <= 0) {
      return;
    }
    batch_ += weight * step.work.num_sequences;
    memory_.stored += weight * step.memory.stored;
    memory_.reserved += weight * step.memory.reserved;
    memory_.internal += weight * step.memory.internal;
    memory_.external += weight * step.memory.external;
    held_blocks_ += weight * step.held_blocks;
    table_blocks_ += weight * step.table_blocks;
    busy_ += weight;
  }

  // Idle time counts for mean_batch but not for mean_memory, because an empty pool wastes nothing.
  void Report(int64_t num_slots, Instant now, SimResult* result) const {
    if (busy_ == 0) {
      return;
    }
    result->mean_batch = batch_ / static_cast<double>(std::min(end_, now));
    const double slots = busy_ * static_cast<double>(num_slots);
    result->mean_memory = {.stored = memory_.stored / slots,
                           .reserved = memory_.reserved / slots,
                           .internal = memory_.internal / slots,
                           .external = memory_.external / slots};
    result->mean_saved_share = table_blocks_ > 0 ? 1 - held_blocks_ / table_blocks_ : 0;
  }

 private:
  Instant end_;
  double busy_ = 0;
  double batch_ = 0;
  MemoryUse memory_;
  double held_blocks_ = 0;
  double table_blocks_ = 0;
};

absl::Status Refuse(const std::string& message) { return absl::InvalidArgumentError(message); }

StepLimits LimitsOf(const SimConfig& config) {
  const int32_t num_blocks = config.platform.num_kv_slots() / config.block_size_tokens;
  const bool swaps = config.preemption_mode != PreemptionMode::kRecompute;
  return {.num_blocks = num_blocks + 1,  // block 0 is the null block
          .num_host_blocks = swaps ? num_blocks : 0,
          .block_size_tokens = config.block_size_tokens,
          .max_sequences = config.max_sequences,
          .max_tokens_per_step = config.max_tokens_per_step,
          .max_model_len = config.max_model_len,
          .vocab_size = kSimVocabSize};
}

// Returns true if an empty pool has room for all sequences of the request together.
bool FitsPool(const SimConfig& config, const SimRequest& request) {
  if (config.policy == MemoryPolicy::kFasterTransformer) {
    return MaxBatchRequests(config) >= 1;
  }
  if (config.policy != MemoryPolicy::kPaged) {
    return FitsReserved(config, request);
  }
  const int64_t num_blocks =
      DivCeil(request.prompt_tokens + request.output_tokens, config.block_size_tokens);
  return config.group_size() * num_blocks <=
         config.platform.num_kv_slots() / config.block_size_tokens;
}

absl::Status CheckRequest(const SimConfig& config, const SimRequest& request, size_t index) {
  const int64_t num_tokens = int64_t{request.prompt_tokens} + request.output_tokens;
  if (request.prompt_tokens < 1 || request.output_tokens < 1 || num_tokens > config.max_model_len) {
    return Refuse(absl::StrCat("request ",
                               index,
                               ": prompt and output must be at least 1 and together at most ",
                               config.max_model_len,
                               " tokens"));
  }
  // The core can split a prompt over several steps, but Orca computes a prompt in one step.
  // FasterTransformer's steps have no limit.
  if (config.policy != MemoryPolicy::kPaged && config.policy != MemoryPolicy::kFasterTransformer &&
      int64_t{config.group_size()} * request.prompt_tokens > config.max_tokens_per_step) {
    return Refuse(
        absl::StrCat("request ", index, ": the prompt has more tokens than a step may have"));
  }
  if (!FitsPool(config, request)) {
    return Refuse(absl::StrCat("request ", index, ": does not fit the KV pool even alone"));
  }
  return absl::OkStatus();
}

void ReportSteps(std::vector<Instant> durations, SimResult* result) {
  result->num_steps = static_cast<int64_t>(durations.size());
  const auto quantile = [&](size_t percent) -> Instant {
    if (durations.empty()) {
      return 0;
    }
    const auto place = durations.begin() + static_cast<int64_t>(durations.size() * percent / 100);
    std::nth_element(durations.begin(), place, durations.end());
    return *place;
  };
  result->step_p50 = quantile(50);
  result->step_p99 = quantile(99);
}

}  // namespace

std::string_view NameOf(MemoryPolicy policy) {
  switch (policy) {
    case MemoryPolicy::kPaged:
      return "paged";
    case MemoryPolicy::kOrcaMax:
      return "orca-max";
    case MemoryPolicy::kOrcaPow2:
      return "orca-pow2";
    case MemoryPolicy::kOrcaOracle:
      return "orca-oracle";
    case MemoryPolicy::kFasterTransformer:
      return "faster-transformer";
  }
  QUIRE_CHECK(false && "not a policy");
  return "";
}

absl::StatusOr<MemoryPolicy> ParseMemoryPolicy(std::string_view name) {
  for (MemoryPolicy policy : kAllPolicies) {
    if (NameOf(policy) == name) {
      return policy;
    }
  }
  return Refuse(absl::StrCat(
      "policy ",
      std::string(name),
      " is unknown; must be paged, orca-max, orca-pow2, orca-oracle or faster-transformer"));
}

absl::Status Validate(const SimConfig& config, const Trace& trace) {
  if (config.platform.num_kv_slots() < 1 || config.block_size_tokens < 1) {
    return Refuse("the pool and the block size must be positive");
  }
  QUIRE_RETURN_IF_ERROR(Validate(LimitsOf(config)));
  if (std::min(config.num_sequences, config.num_beams) != 1 ||
      config.num_beams > BeamSearchParams::kMaxBeams ||
      config.group_size() > config.max_sequences) {
    return Refuse(
        "a request may have several sequences or several beams, not both, and at most as many as a "
        "step");
  }
  if (trace.shared_prefix_tokens < 0) {
    return Refuse("the shared prefix must not be negative");
  }
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    QUIRE_RETURN_IF_ERROR(CheckRequest(config, trace.requests[i], i));
    if (trace.requests[i].prompt_tokens <= trace.shared_prefix_tokens) {
      return Refuse(
          absl::StrCat("request ", i, ": the prompt must be longer than the shared prefix"));
    }
    if (i > 0 && trace.requests[i].arrival < trace.requests[i - 1].arrival) {
      return Refuse(absl::StrCat("request ", i, ": arrives before the previous request"));
    }
  }
  return absl::OkStatus();
}

std::unique_ptr<Engine> MakeEngine(const SimConfig& config, const Trace& trace) {
  if (config.policy == MemoryPolicy::kPaged) {
    return std::make_unique<PagedEngine>(config, LimitsOf(config), trace.shared_prefix_tokens);
  }
  if (config.policy == MemoryPolicy::kFasterTransformer) {
    return std::make_unique<StaticBatchEngine>(config);
  }
  return std::make_unique<ReservingEngine>(config);
}

absl::StatusOr<SimResult> RunSimulation(const SimConfig& config, const Trace& trace) {
  QUIRE_RETURN_IF_ERROR(Validate(config, trace));
  const bool is_paged = config.policy == MemoryPolicy::kPaged;
  const CostModel cost(config.platform, is_paged ? config.block_size_tokens : kContiguous);
  const std::unique_ptr<Engine> engine = MakeEngine(config, trace);
  const std::vector<SimRequest>& requests = trace.requests;
  SimResult result;
  result.finished.resize(requests.size(), -1);
  Meter meter(requests.empty() ? 0 : requests.back().arrival);
  std::vector<Instant> durations;  // durations of all steps
  std::vector<size_t> finished;
  size_t num_arrived = 0;
  size_t num_finished = 0;
  double latency_sum_s = 0;
  Instant now = 0;
  while (num_finished < requests.size()) {
    for (; num_arrived < requests.size() && requests[num_arrived].arrival <= now; ++num_arrived) {
      engine->Arrive(requests[num_arrived], num_arrived, now);
    }
    EngineStep step;
    if (!engine->BeginStep(now, &step)) {
      // Every request fits an empty pool, so an engine without a step has no waiting request, and
      // another request must still arrive.
      QUIRE_CHECK(num_arrived < requests.size());
      now = requests[num_arrived].arrival;
      continue;
    }
    const double seconds = step.work.num_sequences == 0 ? 0 : cost.StepSeconds(step.work);
    const Instant begin = now;
    now = std::max<Instant>(now + 1, step.begin + std::llround(seconds * kNanosPerSecond));
    meter.Add(begin, now, step);
    durations.push_back(now - begin);
    finished.clear();
    engine->EndStep(now, &finished);
    for (size_t index : finished) {
      QUIRE_CHECK(result.finished[index] == -1);  // no request ends twice
      result.finished[index] = now;
      const double latency_s =
          static_cast<double>(now - requests[index].arrival) / static_cast<double>(kNanosPerSecond);
      latency_sum_s += latency_s / requests[index].output_tokens;
    }
    num_finished += finished.size();
    if (latency_sum_s > config.latency_limit_s * static_cast<double>(requests.size())) {
      result.is_over_limit = true;
      break;
    }
  }
  QUIRE_CHECK(result.is_over_limit || engine->num_free_slots() == engine->num_slots());
  meter.Report(engine->num_slots(), now, &result);
  result.mean_normalized_latency_s =
      requests.empty() ? 0 : latency_sum_s / static_cast<double>(requests.size());
  result.end = now;
  ReportSteps(std::move(durations), &result);
  engine->Report(&result);
  return result;
}

}  // namespace quire
