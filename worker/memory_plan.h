// Checks that this machine's memory has room for the weights, KV pools and swap space of its ranks.
// Main memory must be checked before it is allocated, because Linux grants every allocation,
// provides pages only when they are written, and kills a process if pages run out. A GPU refuses
// allocations that do not fit.
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

// Checks that the machine, or the device, has the memory that the command line asks for. In main
// memory, the needs of all ranks on this machine are added up. Message of errors: "--flag: rule".
absl::Status CheckMemory(const WorkerConfig& config,
                         const std::optional<DeviceSpace>& device,
                         std::optional<int64_t> total_bytes);

// Returns the planned sizes of the pools. Called before weights are loaded. weight_bytes: main
// memory that loading this rank's weights takes. Fails if the KV pool is too small to serve any
// request. On a CPU, shrinks pools without a size flag if the weights leave too little memory. On a
// CPU, also fails if this rank's weights and pools exceed the available memory, or this rank's
// equal part of the machine's memory.
absl::StatusOr<KvCacheBudget> PlanMemory(const WorkerConfig& config,
                                         const HostMemory& host,
                                         const KernelBackend& backend,
                                         const ModelConfig& model,
                                         const RankShare& share,
                                         int64_t weight_bytes);

// Returns the final sizes of the pools; called after the weights are loaded. On a CPU, and with
// --kv-cache-memory-bytes, returns `plan` and allocates nothing; StepExecutor::BeginEpoch allocates
// the memory of steps later. On a GPU without this flag, allocates all memory of the largest usual
// step (Model::Reserve), and gives the KV pool the rest of the memory that --gpu-memory-utilization
// allows.
absl::StatusOr<KvCacheBudget> SizeKvCache(const WorkerConfig& config,
                                          const KvCacheBudget& plan,
                                          const KernelBackend& backend,
                                          Model& model);

}  // namespace quire

#endif  // QUIRE_WORKER_MEMORY_PLAN_H_
