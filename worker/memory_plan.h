// Checks that the memory of this machine has room for weights, KV pool and swap space of this rank
// and of the other ranks that run here. Main memory is checked before any is taken: the kernel
// grants every allocation, gives out pages one by one, and would kill a process later. A GPU
// refuses allocations itself.
//
// Thread safety: called from main.
// Errors:        kResourceExhausted, reason MEMORY, with the bytes needed and the limit.
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

// Memory of the machine, or the part of it that this process may take; nullopt if unknown.
struct HostMemory {
  std::optional<int64_t> total_bytes;
  std::optional<int64_t> available_bytes;
};

// Checks that there is as much memory as the command line asks for, for all ranks of this machine.
// Message "--flag: rule".
absl::Status CheckMemory(const WorkerConfig& config,
                         const std::optional<DeviceSpace>& device,
                         std::optional<int64_t> total_bytes);

// Returns the sizes of the pools, before weights are loaded. weight_bytes: main memory of the
// share's weights while they are loaded. Checks that pools and weights of all ranks here fit in the
// machine, and those of this rank in the available memory. Sizes that were not given shrink to what
// the weights leave. Errors: also a pool too small to serve any request.
absl::StatusOr<KvCacheBudget> PlanMemory(const WorkerConfig& config,
                                         const HostMemory& host,
                                         const KernelBackend& backend,
                                         const ModelConfig& model,
                                         const RankShare& share,
                                         int64_t weight_bytes);

// Returns the final sizes, once weights are loaded. On a GPU without --kv-cache-memory-bytes it
// allocates the model's workspace for the largest usual step first, and gives the pool what is then
// left of --gpu-memory-utilization. Otherwise returns `plan`.
absl::StatusOr<KvCacheBudget> SizeKvCache(const WorkerConfig& config,
                                          const KvCacheBudget& plan,
                                          const KernelBackend& backend,
                                          Model& model);

}  // namespace quire

#endif  // QUIRE_WORKER_MEMORY_PLAN_H_
