// StepObserver receives each epoch and each executed step from the executor, for metrics. It is an
// interface, so that the executor does not depend on a metrics library.
//
// Thread safety: called on the executor thread; must be quick and must not block.
#ifndef QUIRE_WORKER_RUNTIME_STEP_OBSERVER_H_
#define QUIRE_WORKER_RUNTIME_STEP_OBSERVER_H_

#include <cstdint>

namespace quire {

// Memory in use for the worker's sequences.
struct WorkerHoldings {
  int32_t num_sequences = 0;
  int32_t num_blocks = 0;       // blocks in block tables; a shared block counts once
  int32_t num_host_blocks = 0;  // host blocks filled in the current epoch
  int64_t num_places = 0;       // mappings of blocks into windows (kv_windows.h)
};

// Sizes of the pools; all 0 if there are no pools.
struct WorkerPools {
  int64_t block_bytes = 0;
  int64_t padding_bytes = 0;  // unused bytes at the end of a block, part of block_bytes
  int64_t max_places = 0;     // upper bound on WorkerHoldings::num_places; 0: no windows
  int64_t num_blocks = 0;     // the null block included
  int64_t num_host_blocks = 0;
};

// State after a scheduler asked to begin an epoch. Observed also if the epoch was refused.
struct EpochObservation {
  bool has_begun = false;
  uint64_t scheduler_incarnation = 0;
  uint64_t group_epoch = 0;  // 0: no epoch has begun yet
  WorkerPools pools;
  WorkerHoldings holdings;
};

// Mapping work of one step, counted in places of windows (WindowCounts). A place is an address
// range as long as a block.
struct WindowWork {
  int64_t num_found = 0;  // already had the needed block, left by an earlier sequence
  int64_t num_mapped = 0;
  int64_t num_mapped_ahead = 0;  // needed now, mapped during an earlier step
  int64_t num_taken_down = 0;    // unmapped because the system's limit was reached
  bool was_refused = false;      // true if mapping failed, so that attention read block tables
};

// A step that was executed. Durations in nanoseconds.
struct ExecutedStep {
  bool was_prepared = false;  // the step was predicted and begun before
  int64_t build_ns = 0;
  int64_t forward_ns = 0;
  int64_t sample_ns = 0;
  int64_t swap_ns = 0;                // partly in build_ns, partly in sample_ns
  int64_t map_ns = 0;                 // part of build_ns
  int64_t forward_collective_ns = 0;  // part of forward_ns
  int64_t sample_collective_ns = 0;   // part of sample_ns
  int64_t num_tokens = 0;
  int64_t num_sampled = 0;
  int64_t num_swapped_out = 0;
  int64_t num_swapped_in = 0;  // without failed swap-ins
  int64_t num_failed_swap_ins = 0;
  WindowWork windows;
  WorkerHoldings holdings;
};

class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void OnEpoch(const EpochObservation& epoch) = 0;
  virtual void OnStep(const ExecutedStep& step) = 0;
};

}  // namespace quire

#endif  // QUIRE_WORKER_RUNTIME_STEP_OBSERVER_H_
