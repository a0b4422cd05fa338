// StepObserver hears what the executor does, for metrics. Kept apart so that the executor knows no
// metrics library.
//
// Thread safety: called by the executor thread; must be quick, and wait for nobody.
#ifndef QUIRE_WORKER_RUNTIME_STEP_OBSERVER_H_
#define QUIRE_WORKER_RUNTIME_STEP_OBSERVER_H_

#include <cstdint>

namespace quire {

// What the worker holds for its sequences.
struct WorkerHoldings {
  int32_t num_sequences = 0;
  int32_t num_blocks = 0;       // named by block tables, shared ones once
  int32_t num_host_blocks = 0;  // filled in this epoch
  int64_t num_places = 0;       // of windows that show something
};

// The pools that there are; all 0: none.
struct WorkerPools {
  int64_t block_bytes = 0;
  int64_t padding_bytes = 0;  // of these
  int64_t max_places = 0;     // that may show something at once; 0: no windows
  int64_t num_blocks = 0;     // the null block included
  int64_t num_host_blocks = 0;
};

// What holds after an epoch was asked for, whether it began or was refused.
struct EpochObservation {
  bool has_begun = false;
  uint64_t scheduler_incarnation = 0;
  uint64_t group_epoch = 0;  // 0: none so far
  WorkerPools pools;
  WorkerHoldings holdings;
};

// What a step did to the windows through which attention reads. Places, see KvWindows.
struct WindowWork {
  int64_t num_found = 0;  // show the right block since a sequence before
  int64_t num_mapped = 0;
  int64_t num_mapped_ahead = 0;  // in a step before, beside it
  int64_t num_taken_down = 0;
  bool was_refused = false;  // no room: attention read block tables
};

// A step that was executed. Durations in nanoseconds.
struct ExecutedStep {
  int64_t build_ns = 0;
  int64_t forward_ns = 0;
  int64_t sample_ns = 0;
  // Parts of these three.
  int64_t swap_ns = 0;                // of build and sample
  int64_t map_ns = 0;                 // of build
  int64_t forward_collective_ns = 0;  // of forward
  int64_t sample_collective_ns = 0;   // of sample
  int64_t num_tokens = 0;
  int64_t num_sampled = 0;
  int64_t num_swapped_out = 0;
  int64_t num_swapped_in = 0;  // those that failed are not among them
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
