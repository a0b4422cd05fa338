// What the ranks of a group must have in common before an epoch begins, and the limits that follow
// from all of them.
//
// Thread safety: free functions of their arguments.
// Errors:        kFailedPrecondition, message "[rank N: ]field: rule (got X, limit Y)", reasons
//                  CONFIG_MISMATCH     the worker has loaded something else, or computes otherwise
//                  PROTOCOL_VIOLATION  no worker says such things of itself
//                  NO_MEMORY           not even one block can be used
//                  STEP_LIMITS         what was asked for is more than any worker takes
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

// What the scheduler wants of its workers.
struct GroupSettings {
  ModelConfig model;
  int32_t block_size_tokens = 16;
  std::optional<DType> kv_cache_dtype;         // none: the worker's choice
  std::optional<int32_t> num_blocks_override;  // with the null block
  std::optional<int32_t> max_model_len;        // none: what model and pool allow
  bool wants_host_blocks = false;              // all that the workers' swap space holds
  int32_t max_sequences = 256;
  std::optional<int32_t> max_tokens_per_step;  // none: as many as fill the workers' devices
  // A worker that computes other bits may go on where another one stopped. Other weights never may.
  bool allow_changed_numerics = false;
  // It waits while another scheduler has the workers, and takes them from none that works.
  bool stands_by = true;
};

// What decides the bits of an answer. Two groups with equal numerics continue each other's streams.
struct Numerics {
  uint64_t model_hash = 0;             // of the files
  std::vector<uint64_t> weights_sums;  // by rank
  std::string backend;
  DType kv_cache_dtype = DType::kF32;

  // "cpu-avx512/float32/1f2e3d4c5b6a7988"; the same for any number of ranks.
  std::string fingerprint() const;
};

struct Agreement {
  StepLimits limits;
  Numerics numerics;
  int64_t block_bytes = 0;  // on one rank
};

// May this worker be this rank of the group? `pinned`: the numerics of the group before, if any.
absl::Status CheckHello(const WorkerHello& hello,
                        int32_t rank,
                        const GroupSettings& settings,
                        const std::optional<Numerics>& pinned);

// REQUIRES: CheckHello is OK for each hello, and there is one at least.
absl::StatusOr<Agreement> Agree(std::span<const WorkerHello> hellos, const GroupSettings& settings);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_GROUP_AGREEMENT_H_
