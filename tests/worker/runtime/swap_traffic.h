// SwapTraffic drives a StepExecutor as a scheduler that swaps would. Sequences start, are computed
// in pieces, leave for host memory at random, come back into other blocks, and end. The answers of
// each sequence must not depend on the swaps.
//
// Thread safety: one caller at a time.
#ifndef QUIRE_TESTS_WORKER_RUNTIME_SWAP_TRAFFIC_H_
#define QUIRE_TESTS_WORKER_RUNTIME_SWAP_TRAFFIC_H_

#include <cstdint>
#include <set>
#include <vector>

#include "tests/support/random.h"
#include "worker/runtime/step_executor.h"

namespace quire {

struct SwapTrafficOptions {
  uint64_t seed = 1;
  int32_t num_sequences = 4;
  int32_t num_blocks = 24;  // of the pool
  int32_t num_host_blocks = 16;
  int32_t block_size_tokens = 4;
  int32_t max_prompt_tokens = 20;
  int32_t num_output_tokens = 12;
  int32_t max_slice_tokens = 1 << 20;
  int32_t swap_out_one_in = 5;  // steps of a running sequence; 0: never
  // If true, blocks are used again only when the swaps that need them are reported done. If false,
  // the worker itself must wait for the swaps.
  bool waits_for_swaps = true;
};

class SwapTraffic {
 public:
  // Begins an epoch with pools of these sizes.
  SwapTraffic(StepExecutor& executor, DType kv_cache_dtype, const SwapTrafficOptions& options);

  // Returns all tokens of each sequence, prompts first.
  std::vector<std::vector<TokenId>> Run();

  int num_swapped_out() const { return num_swapped_out_; }
  // Steps that were answered before their swaps were done.
  int num_steps_ahead() const { return num_steps_ahead_; }

 private:
  enum class Stage : uint8_t { kWaiting, kRunning, kSwapped, kDone };

  struct Sequence {
    Stage stage = Stage::kWaiting;
    std::vector<TokenId> token_ids;
    int32_t num_prompt_tokens = 0;
    int32_t num_computed_tokens = 0;
    std::vector<BlockId> block_ids;
    std::vector<HostBlockId> host_block_ids;
    uint64_t generation = 0;  // of what they hold
  };

  // An id that is free again when the swaps of a step are done.
  template <typename Id>
  struct Fenced {
    Id id = 0;
    uint64_t step_id = 0;
  };

  int32_t NumBlocksFor(int32_t num_tokens) const;
  bool TakeBlocks(int32_t count, std::vector<BlockId>* taken);
  void PlanSequence(SequenceHandle handle, StepPlan* plan);
  void SwapOut(SequenceHandle handle, StepPlan* plan);
  bool SwapIn(SequenceHandle handle, StepPlan* plan);
  void Introduce(SequenceHandle handle, StepPlan* plan) const;
  void AddSlice(SequenceHandle handle, StepPlan* plan);
  void Apply(const StepResult& result);

  StepExecutor& executor_;
  const SwapTrafficOptions options_;
  Random random_;
  std::vector<Sequence> sequences_;
  std::set<BlockId> free_blocks_;
  std::set<HostBlockId> free_host_blocks_;
  std::vector<Fenced<BlockId>> fenced_blocks_;
  std::vector<Fenced<HostBlockId>> fenced_host_blocks_;
  uint64_t step_id_ = 0;
  int num_swapped_out_ = 0;
  int num_steps_ahead_ = 0;
};

}  // namespace quire

#endif  // QUIRE_TESTS_WORKER_RUNTIME_SWAP_TRAFFIC_H_
