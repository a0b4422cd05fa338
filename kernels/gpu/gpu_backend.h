// GpuBackend runs a model on the kernels of kernels/cuda, through the interface of gpu_api.h: on a
// GPU, or on the CPU with the emulated build of the same kernels.
//
// Activations are bf16 or f16 on the device; inputs of a step travel in one copy. Steps in which
// every sequence decodes one token are recorded as graphs, one for each padded number of sequences,
// and repeated; all others run operation by operation.
//
// Thread safety: as KernelBackend.
// Errors:        a failing device ends the process (exit code kExitDevice): its state cannot be
//                trusted any more, and the scheduler computes what was lost again.
#ifndef QUIRE_KERNELS_GPU_GPU_BACKEND_H_
#define QUIRE_KERNELS_GPU_GPU_BACKEND_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

#include "kernels/api/kernel_backend.h"
#include "kernels/gpu/gpu_library.h"

namespace quire {

enum class GpuQuantization : uint8_t {
  kNone,
  // The weights of the layers are e4m3 with one fp32 scale an output channel, and what they are
  // multiplied with is rounded to e4m3 with one fp32 scale a token. Embedding, output matrix,
  // attention and norms stay as they are.
  kFp8,
};

struct GpuBackendOptions {
  std::optional<DType> dtype;  // of activations and weights, kBF16 or kF16; none: the model's
  bool use_graphs = true;
  bool batch_invariant = false;  // products too give a row the same bits in every batch
  GpuQuantization quantization = GpuQuantization::kNone;
  // File that keeps which algorithms of products were the fastest (kernels/cuda/gemm_cache.h).
  // Empty: none, and every start times them again.
  std::string gemm_cache_path;
};

// Errors: kInvalidArgument for another dtype; kFailedPrecondition, reason DEVICE, without a library
// for products. PrepareFor: the same, too, when the library has none for the quantization. Makes
// the library's device the current one of the calling thread, as BindThread does on others.
absl::StatusOr<std::unique_ptr<KernelBackend>> CreateGpuBackend(const GpuLibrary& library,
                                                                const GpuBackendOptions& options);

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_GPU_BACKEND_H_
