// RunSimulation serves a trace in virtual time: requests arrive, an engine decides what each step
// computes, a cost model gives the step's duration. The same trace, engine and seed give the same
// result to the last bit.
//
// Thread safety: the free functions are safe from any thread; an Engine is not thread-safe.
// Source:        Kwon et al. 2023, sections 6.1 to 6.5, for policies and metrics.
#ifndef QUIRE_SCHEDULER_SIM_SIMULATION_H_
#define QUIRE_SCHEDULER_SIM_SIMULATION_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/clock.h"
#include "scheduler/core/core_config.h"
#include "scheduler/sim/cost_model.h"
#include "scheduler/sim/swap_cost.h"
#include "scheduler/sim/trace.h"

namespace quire {

enum class MemoryPolicy : uint8_t {
  kPaged,              // the production core
  kOrcaMax,            // reserves the model's whole context for every request
  kOrcaPow2,           // reserves the prompt, and the output rounded up to a power of two
  kOrcaOracle,         // knows the output's length; reserves exactly prompt and output
  kFasterTransformer,  // static batches; reserves the whole context for every request
};

inline constexpr MemoryPolicy kAllPolicies[] = {MemoryPolicy::kOrcaMax,
                                                MemoryPolicy::kOrcaPow2,
                                                MemoryPolicy::kOrcaOracle,
                                                MemoryPolicy::kPaged,
                                                MemoryPolicy::kFasterTransformer};

std::string_view NameOf(MemoryPolicy policy);

// Errors: kInvalidArgument, listing the known names.
absl::StatusOr<MemoryPolicy> ParseMemoryPolicy(std::string_view name);

struct SimConfig {
  Platform platform;
  MemoryPolicy policy = MemoryPolicy::kPaged;
  int32_t block_size_tokens = 16;
  // The next three limits have the values that were vLLM's defaults at the time of the
  // PagedAttention paper.
  int32_t max_sequences = 256;
  int32_t max_tokens_per_step = 2560;
  int32_t max_model_len = 2048;
  // Sequences of each request, sampled side by side.
  int32_t num_sequences = 1;
  // Beams of each request's beam search, which returns one output. At most one of num_sequences and
  // num_beams is above 1.
  int32_t num_beams = 1;
  // The next five fields are for the paged policy alone. Host memory has the same number of blocks
  // as the pool.
  bool prefix_caching = false;
  PreemptionMode preemption_mode = PreemptionMode::kRecompute;
  Instant target_inter_token = kInfiniteFuture;   // as in CoreConfig
  BlockLayout layout = BlockLayout::kBlockMajor;  // sets the cost of a swap
  bool checks_invariants = false;                 // checks after every step, which is slow
  // The simulation stops as soon as the mean normalized latency is certain to exceed this limit.
  double latency_limit_s = std::numeric_limits<double>::infinity();

  // Sequences or beams of a request.
  int32_t group_size() const { return std::max(num_sequences, num_beams); }
};

// Use of the pool's slots. Units: tokens. The four fields add up to the pool's size.
struct MemoryUse {
  double stored = 0;    // slots that hold K and V
  double reserved = 0;  // slots that will hold K and V of a running request
  double internal = 0;  // slots that a running request holds but never fills
  double external = 0;  // all other slots: free, or lost by rounding reservations up
};

struct SimResult {
  std::vector<Instant> finished;         // for each request: time of its end; -1: it has not ended
  bool is_over_limit = false;            // latency_limit_s stopped the simulation
  double mean_normalized_latency_s = 0;  // latency / output tokens, averaged over all requests
  // Number of sequences in the running step, averaged over the time up to the last arrival. Idle
  // time counts as 0 sequences.
  double mean_batch = 0;
  MemoryUse mean_memory;  // fractions of the pool, averaged over busy time up to the last arrival
  // Share of blocks that sharing saves: 1 - mean held_blocks / mean table_blocks (see EngineStep).
  // Both means are over the same time as mean_memory.
  double mean_saved_share = 0;
  Instant end = 0;  // end of the last step
  int64_t num_steps = 0;
  // Median duration of a step, which is the time that a stream waits for a token.
  Instant step_p50 = 0;
  // 99th percentile of the durations of steps.
  Instant step_p99 = 0;
  int64_t num_preemptions = 0;
  int64_t num_swap_preemptions = 0;  // included in num_preemptions
  int64_t num_recomputed_tokens = 0;
};

// An engine's plan for one step.
struct EngineStep {
  // Time at which the step's work begins. Before this time, swaps are submitted or awaited.
  Instant begin = 0;
  StepWork work;
  MemoryUse memory;  // use of the pool while the step runs
  // Blocks in use while the step runs.
  double held_blocks = 0;
  // Like held_blocks, but a shared block counts once for each of its sequences.
  double table_blocks = 0;
};

// An engine decides which requests run. RunSimulation tells the engine of each arrival, in order,
// and of the end of each step.
class Engine {
 public:
  virtual ~Engine() = default;
  // index: the request's index in Trace::requests. Callers pass 0, 1, 2, ... in this order.
  virtual void Arrive(const SimRequest& request, size_t index, Instant now) = 0;
  // Fills *step with the next step. Returns false if there is none.
  virtual bool BeginStep(Instant now, EngineStep* step) = 0;
  // Appends the indices of the requests that ended.
  virtual void EndStep(Instant now, std::vector<size_t>* finished) = 0;
  virtual void Report(SimResult* /*result*/) const {}
  // Number of slots that no request holds: the whole pool when all requests have ended.
  virtual int64_t num_free_slots() const = 0;
  virtual int64_t num_slots() const = 0;
};

// REQUIRES: Validate(config, trace) is OK.
std::unique_ptr<Engine> MakeEngine(const SimConfig& config, const Trace& trace);

// Checks that every request fits the context and the pool, and that the limits are positive and
// within the bounds of the core and of the worker protocol. Errors: kInvalidArgument.
absl::Status Validate(const SimConfig& config, const Trace& trace);

// Errors: those of Validate.
absl::StatusOr<SimResult> RunSimulation(const SimConfig& config, const Trace& trace);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_SIMULATION_H_
