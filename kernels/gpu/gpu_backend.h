// GpuBackend runs a model on the kernels of kernels/cuda, through the interface of gpu_api.h: on a
// GPU, or on the CPU with the emulated build of the same kernels.
//
// Activations are bf16 or f16 on the device; inputs of a step travel in one copy. Steps in which
// every sequence decodes one token are recorded as graphs, one for each DecodeShape, and replayed;
// all other steps run operation by operation.
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
  // Weights of the layers are e4m3 with one fp32 scale per output channel. Their inputs are rounded
  // to e4m3 with one fp32 scale per token. Embedding, output matrix, attention and norms keep their
  // types.
  kFp8,
};

struct GpuBackendOptions {
  std::optional<DType> dtype;  // of activations and weights: kBF16 or kF16; nullopt: the model's
  bool use_graphs = true;
  bool batch_invariant = false;  // a row of a product has the same bits in every batch
  GpuQuantization quantization = GpuQuantization::kNone;
  // File that keeps the fastest algorithm of each product (kernels/cuda/gemm_cache.h). Empty: no
  // file, so every start times them again.
  std::string gemm_cache_path;
};

// Makes the library's device the calling thread's current device, as BindThread does on other
// threads. Errors: kInvalidArgument for another dtype; kFailedPrecondition, reason DEVICE, if there
// is no library for products. PrepareFor fails the same way if that library has no products for the
// quantization.
absl::StatusOr<std::unique_ptr<KernelBackend>> CreateGpuBackend(const GpuLibrary& library,
                                                                const GpuBackendOptions& options);

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_GPU_BACKEND_H_
