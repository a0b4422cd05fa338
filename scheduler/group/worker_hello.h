// What a worker says of itself: once in the handshake, then in its reports.
//
// Thread safety: value types.
#ifndef QUIRE_SCHEDULER_GROUP_WORKER_HELLO_H_
#define QUIRE_SCHEDULER_GROUP_WORKER_HELLO_H_

#include <cstdint>
#include <optional>
#include <string>

#include "common/model/dtype.h"
#include "common/step/kv_memory.h"

namespace quire {

// The answer to a handshake. Nothing in it has been checked.
struct WorkerHello {
  std::string uuid;  // one value per process start
  uint64_t config_hash = 0;
  uint64_t model_hash = 0;   // of the files
  uint64_t weights_sum = 0;  // of this rank's part
  int64_t block_bytes = 0;
  int32_t num_blocks_max = 0;  // the null block included
  int32_t num_host_blocks_max = 0;
  std::optional<DType> kv_cache_dtype;  // none: one that is unknown here
  std::string determinism_fingerprint;  // of the backend
  int32_t vocab_size = 0;
  int32_t full_step_tokens = 0;    // with which its device is busy; 0: it does not say
  std::string rendezvous;          // where other ranks find it
  bool wants_next_blocks = false;  // it prepares blocks ahead of need
  KvMemory kv_memory;              // without num_places, which reports tell
};

enum class WorkerPhase : uint8_t { kUnknown, kLoading, kIdle, kBeginningEpoch, kExecuting };

struct WorkerReport {
  std::string uuid;
  WorkerPhase phase = WorkerPhase::kUnknown;
  uint64_t progress = 0;  // the same as before: nothing was done in between
  int64_t loaded_bytes = 0;
  int64_t total_bytes = 0;
  uint64_t scheduler_incarnation = 0;
  uint64_t group_epoch = 0;
  uint64_t step_id = 0;
  std::optional<int32_t> waits_for_rank;  // unchecked
  int64_t num_window_places = 0;          // that show a block
  uint64_t holder_incarnation = 0;        // of the scheduler that has the worker; 0: none
  int64_t holder_silence_ns = 0;          // for which the worker has heard nothing of it
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_GROUP_WORKER_HELLO_H_
