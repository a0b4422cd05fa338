// StaticBatchEngine serves like FasterTransformer under a scheduler with dynamic batching, such as
// Triton's. When no batch runs, the oldest waiting requests that fit together become a batch. The
// requests of a batch start together, and their prompts are padded to the longest prompt. All
// requests are computed until the longest output ends, and are then answered together. No request
// joins a running batch. Each sequence has slots for the whole context of the model, in one array.
//
// Thread safety: not thread-safe.
// Source:        Kwon et al. 2023, section 6.1, "Baseline 1: FasterTransformer".
#ifndef QUIRE_SCHEDULER_SIM_STATIC_BATCH_ENGINE_H_
#define QUIRE_SCHEDULER_SIM_STATIC_BATCH_ENGINE_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "scheduler/sim/simulation.h"

namespace quire {

// Returns how many requests, each with all its sequences, fit in a batch.
int32_t MaxBatchRequests(const SimConfig& config);

class StaticBatchEngine : public Engine {
 public:
  // REQUIRES: Validate(config, trace) is OK for the trace that is to be served.
  explicit StaticBatchEngine(const SimConfig& config);

  void Arrive(const SimRequest& request, size_t index, Instant now) override;
  bool BeginStep(Instant now, EngineStep* step) override;
  void EndStep(Instant now, std::vector<size_t>* finished) override;
  int64_t num_free_slots() const override;
  int64_t num_slots() const override { return config_.platform.num_kv_slots(); }

 private:
  struct Entry {
    SimRequest request;
    size_t index = 0;
  };

  void StartBatch();
  MemoryUse Memory() const;

  SimConfig config_;
  std::deque<Entry> waiting_;
  std::vector<Entry> batch_;
  int32_t longest_prompt_ = 0;  // longest prompt of the batch
  int32_t longest_output_ = 0;
  // Steps of the batch so far; also the number of tokens of each output that has not ended.
  int32_t num_steps_ = 0;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_STATIC_BATCH_ENGINE_H_
