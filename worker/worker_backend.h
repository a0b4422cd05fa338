// CreateBackend makes what the command line asks for to compute on: the CPU, a GPU, or the GPU's
// kernels emulated on the CPU.
//
// Thread safety: called once, from main.
#ifndef QUIRE_WORKER_WORKER_BACKEND_H_
#define QUIRE_WORKER_WORKER_BACKEND_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"

#include "kernels/api/kernel_backend.h"
#include "worker/model/model.h"
#include "worker/worker_config.h"

namespace quire {

// --device=auto falls back to the CPU, and logs why; but not with --quantization, which the CPU
// does not have. Errors: kInvalidArgument or kFailedPrecondition, message "--flag: rule".
absl::StatusOr<std::unique_ptr<KernelBackend>> CreateBackend(const WorkerConfig& config);

// Is there as much memory as the command line asks for? `total_bytes` is the machine's; nothing
// when it is not known. Errors: kResourceExhausted, reason MEMORY, message "--flag: rule".
absl::Status CheckMemory(const WorkerConfig& config,
                         const std::optional<DeviceSpace>& device,
                         std::optional<int64_t> total_bytes);

// The memory of the KV pool. On a GPU without --kv-cache-memory-bytes: takes the model's workspace
// for the largest usual step first, and gives the pool what is then left of
// --gpu-memory-utilization. Errors: kResourceExhausted, reason MEMORY, when the workspace does not
// fit, and when the pool has no room for the smallest block there is.
absl::StatusOr<KvCacheBudget> SizeKvCache(const WorkerConfig& config,
                                          const KernelBackend& backend,
                                          Model& model);

}  // namespace quire

#endif  // QUIRE_WORKER_WORKER_BACKEND_H_
