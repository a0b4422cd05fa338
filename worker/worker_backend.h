// CreateBackend makes the backend that the command line asks for: the CPU, a GPU, or the GPU's
// kernels emulated on the CPU.
//
// Thread safety: called once, from main.
#ifndef QUIRE_WORKER_WORKER_BACKEND_H_
#define QUIRE_WORKER_WORKER_BACKEND_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/model/model_config.h"
#include "common/model/rank_share.h"
#include "kernels/api/kernel_backend.h"
#include "kernels/cpu/cpu_backend.h"
#include "worker/worker_config.h"

namespace quire {

// Returns the CPU options of the command line.
CpuBackendOptions CpuOptions(const WorkerConfig& config);

// Creates the backend. With --device=auto and --quantization=int8 or int4, creates the CPU backend.
// With --device=auto and no usable GPU, creates the CPU backend and logs the reason; returns an
// error if --quantization=fp8 is given too, since only GPUs have fp8 products.
// Errors: kInvalidArgument or kFailedPrecondition, message "--flag: rule".
absl::StatusOr<std::unique_ptr<KernelBackend>> CreateBackend(const WorkerConfig& config);

// If --kv-backend=vmm is given, checks that the device can map windows (kv_windows.h). Errors:
// kInvalidArgument, reason FLAG.
absl::Status CheckKvBackend(const WorkerConfig& config, const KernelBackend& backend);

// Fails if GPU ranks listen on an address that other machines can reach, unless
// --allow-insecure-bind is given. The links between GPU ranks can use NCCL, which encrypts nothing.
// Errors: kInvalidArgument, reason FLAG.
absl::Status CheckRankLinks(const WorkerConfig& config, const KernelBackend& backend);

// With --quantization, checks that the model has no quantization_config. With int8 and int4, also
// checks that rows of the rank's matrices divide into groups of kInputGroup weights. Errors:
// kInvalidArgument, reason FLAG.
absl::Status CheckQuantization(const WorkerConfig& config,
                               const ModelConfig& model,
                               const RankShare& share);

}  // namespace quire

#endif  // QUIRE_WORKER_WORKER_BACKEND_H_
