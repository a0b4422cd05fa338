// What the memory of this machine has room for: weights, KV pool and swap space of this rank, and
// of the other ranks that run here. Main memory is asked before anything is taken, since the kernel
// gives pages one by one: it would say yes to all of it, and end a process later. A GPU says itself
// what it has.
//
// Thread safety: called from main.
// Errors:        kResourceExhausted, reason MEMORY, with what was needed and what there is.
#ifndef QUIRE_WORKER_MEMORY_PLAN_H_
#define QUIRE_WORKER_MEMORY_PLAN_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/model/model_config.h"
#include "common/model/rank_share.h"
#include "kernels/api/kernel_backend.h"
#include "worker/model/model.h"
#include "worker/worker_config.h"

namespace quire {

// Of the machine, or of what of it this process may take. Nothing where it is not known.
struct HostMemory {
  std::optional<int64_t> total_bytes;
  std::optional<int64_t> available_bytes;
};

// Is there as much memory as the command line asks for, for all ranks of this machine? Message
// "--flag: rule".
absl::Status CheckMemory(const WorkerConfig& config,
                         const std::optional<DeviceSpace>& device,
                         std::optional<int64_t> total_bytes);

// Before weights are loaded: the pools, after a look whether they and `weight_bytes`, what the
// weights of the share take while they are loaded, have room together: those of all ranks here in
// the machine, those of this one in what is available. Sizes that were not given become smaller
// where weights leave less. Also an error: a pool that no scheduler can serve a request with.
absl::StatusOr<KvCacheBudget> PlanMemory(const WorkerConfig& config,
                                         const HostMemory& host,
                                         const KernelBackend& backend,
                                         const ModelConfig& model,
                                         const RankShare& share,
                                         int64_t weight_bytes);

// When they are loaded. On a GPU without --kv-cache-memory-bytes: takes the model's workspace for
// the largest usual step first, and gives the pool what is then left of --gpu-memory-utilization.
// Elsewhere `plan` it is.
absl::StatusOr<KvCacheBudget> SizeKvCache(const WorkerConfig& config,
                                          const KvCacheBudget& plan,
                                          const KernelBackend& backend,
                                          Model& model);

}  // namespace quire

#endif  // QUIRE_WORKER_MEMORY_PLAN_H_
