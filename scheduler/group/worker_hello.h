// Messages in which a worker describes itself: a WorkerHello in the handshake, then WorkerReports.
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
  std::string uuid;  // a new value for each start of the process
  uint64_t config_hash = 0;
  uint64_t model_hash = 0;   // hash of the model's files
  uint64_t weights_sum = 0;  // checksum of this rank's weights
  int64_t block_bytes = 0;
  int32_t num_blocks_max = 0;  // the null block included
  int32_t num_host_blocks_max = 0;
  std::optional<DType> kv_cache_dtype;  // nullopt: a type unknown to this scheduler
  std::string determinism_fingerprint;  // becomes Numerics::backend
  int32_t vocab_size = 0;
  int32_t full_step_tokens = 0;    // tokens of a step that fill the device; 0: not reported
  std::string rendezvous;          // address at which the other ranks connect to this worker
  bool wants_next_blocks = false;  // plans should name the blocks that sequences will need next
  KvMemory kv_memory;              // num_places is not set: see WorkerReport::num_window_places
};

enum class WorkerPhase : uint8_t { kUnknown, kLoading, kIdle, kBeginningEpoch, kExecuting };

struct WorkerReport {
  std::string uuid;
  WorkerPhase phase = WorkerPhase::kUnknown;
  uint64_t progress = 0;  // equal in two reports if no work was finished in between
  int64_t loaded_bytes = 0;
  int64_t total_bytes = 0;
  uint64_t scheduler_incarnation = 0;
  uint64_t group_epoch = 0;
  uint64_t step_id = 0;
  std::optional<int32_t> waits_for_rank;  // rank that this worker waits for; not validated
  int64_t num_window_places = 0;          // see KvMemory::num_places
  uint64_t holder_incarnation = 0;        // newest scheduler that asked for the worker; 0: none
  int64_t holder_silence_ns = 0;          // time since the worker last heard from the holder
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_GROUP_WORKER_HELLO_H_
