// CreateBackend makes what the command line asks for to compute on: the CPU, a GPU, or the GPU's
// kernels emulated on the CPU.
//
// Thread safety: called once, from main.
#ifndef QUIRE_WORKER_WORKER_BACKEND_H_
#define QUIRE_WORKER_WORKER_BACKEND_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/api/kernel_backend.h"
#include "kernels/cpu/cpu_backend.h"
#include "worker/worker_config.h"

namespace quire {

// What the command line says of the CPU.
CpuBackendOptions CpuOptions(const WorkerConfig& config);

// --device=auto falls back to the CPU, and logs why; but not with --quantization, which the CPU
// does not have. Errors: kInvalidArgument or kFailedPrecondition, message "--flag: rule".
absl::StatusOr<std::unique_ptr<KernelBackend>> CreateBackend(const WorkerConfig& config);

// That the device has windows, where they are asked for. Errors: as below.
absl::Status CheckKvBackend(const WorkerConfig& config, const KernelBackend& backend);

// Whether other ranks may reach this one where it listens: those on GPUs may add up by NCCL, which
// encrypts nothing. Errors: kInvalidArgument, reason FLAG.
absl::Status CheckRanksMayMeet(const WorkerConfig& config, const KernelBackend& backend);

}  // namespace quire

#endif  // QUIRE_WORKER_WORKER_BACKEND_H_
