// Checks that the ranks can share an epoch, and derives the epoch's limits from the WorkerHello of
// each rank.
//
// Thread safety: any thread; free functions without state.
// Errors:        kFailedPrecondition, message "[rank N: ]field: rule (got X, limit Y)", reasons
//                  CONFIG_MISMATCH     the worker's model, numerics or KV cache are impossible, or
//                                      do not match the settings, the previous group or rank 0
//                  PROTOCOL_VIOLATION  a text in the WorkerHello is too long
//                  NO_MEMORY           the pool has no usable block
//                  STEP_LIMITS         the settings give limits that no worker accepts
#ifndef QUIRE_SCHEDULER_GROUP_AGREEMENT_H_
#define QUIRE_SCHEDULER_GROUP_AGREEMENT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/model/dtype.h"
#include "common/model/model_config.h"
#include "common/step/step_limits.h"
#include "scheduler/group/worker_hello.h"

namespace quire {

// Requirements of the scheduler on its workers, from its flags and its model.
struct GroupSettings {
  ModelConfig model;
  int32_t block_size_tokens = 16;
  std::optional<DType> kv_cache_dtype;         // nullopt: the worker chooses
  std::optional<int32_t> num_blocks_override;  // includes the null block
  std::optional<int32_t> max_model_len;        // nullopt: the longest that model and pool allow
  bool wants_host_blocks = false;              // true: use all swap space of the workers
  int32_t max_sequences = 256;
  std::optional<int32_t> max_tokens_per_step;  // nullopt: enough to fill the workers' devices
  // True: workers whose numerics differ from the previous group's may continue that group's
  // streams. Workers whose weights differ are never accepted.
  bool allow_changed_numerics = false;
  // False: this scheduler takes the workers from an older scheduler at once when it starts, without
  // standing by.
  bool stands_by = true;
};

// Properties of a group that decide the bits of an answer. Groups with equal numerics can continue
// each other's streams.
struct Numerics {
  uint64_t model_hash = 0;             // hash of the model's files
  std::vector<uint64_t> weights_sums;  // checksum of each rank's weights
  std::string backend;
  DType kv_cache_dtype = DType::kF32;
  int32_t rope_length = 0;  // RopeLength at max_model_len, before the pool's size bounds it

  // Returns the fingerprint of these numerics, for example "cpu-avx512/float32/1f2e3d4c5b6a7988".
  // The number of ranks does not change the fingerprint.
  std::string fingerprint() const;
};

struct Agreement {
  StepLimits limits;
  Numerics numerics;
  int64_t block_bytes = 0;  // bytes of a block on one rank
};

// Returns OK if the worker may serve as this rank. `pinned`: numerics of the previous group;
// nullopt: there was none.
absl::Status CheckHello(const WorkerHello& hello,
                        int32_t rank,
                        const GroupSettings& settings,
                        const std::optional<Numerics>& pinned);

// Returns the limits and numerics of an epoch. hellos: one per rank, in the order of the ranks, and
// at least one. `pinned`: as in CheckHello. REQUIRES: CheckHello returned OK for each hello.
absl::StatusOr<Agreement> Agree(std::span<const WorkerHello> hellos,
                                const GroupSettings& settings,
                                const std::optional<Numerics>& pinned = std::nullopt);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_GROUP_AGREEMENT_H_
