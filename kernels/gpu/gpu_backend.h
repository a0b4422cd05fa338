// GpuBackend runs a model on the kernels of kernels/cuda, through the interface of gpu_api.h: on a
// GPU, or on the CPU with the emulated build of the same kernels.
//
// Activations are bf16 or f16 on the device; the inputs of a step are uploaded in one copy. Unless
// collectives run through main memory, steps in which every sequence decodes one token are recorded
// as graphs and replayed. Steps without a graph run operation by operation. A graph's name is the
// digest of its operations' parameters (OperationDigest). Each step computes the digest of its own
// operations, so it replays only a graph of the same operations.
//
// Thread safety: as KernelBackend.
// Errors:        a failing device ends the process (exit code kExitDevice), because its state
//                cannot be trusted any more. The scheduler then plans the lost steps again.
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
  // Weights of the layers are e4m3 with one fp32 scale per output channel. The inputs of these
  // layers are rounded to e4m3 with one fp32 scale per token. Embedding, output matrix, attention
  // and norms keep their types.
  kFp8,
};

struct GpuBackendOptions {
  // Type of activations and weights: kBF16 or kF16. Nullopt: the model's type.
  std::optional<DType> dtype;
  bool use_graphs = true;
  // Upper bounds on the recorded graphs. For up to 512 sequences there are 31 buckets
  // (DecodeBucket). A bucket can have two graphs, one with block tables and one with windows.
  int32_t max_graphs = 64;
  int64_t max_graph_bytes = int64_t{512} << 20;  // and at most a fortieth of the device's memory
  // Whether the graphs of all buckets are recorded when an epoch begins, and not when a step first
  // needs them.
  bool records_at_start = false;
  bool batch_invariant = false;  // a row of a product has the same bits in every batch
  GpuQuantization quantization = GpuQuantization::kNone;
  // Bounds the memory for partial results of decodes, unless a single sequence needs more. Decodes
  // that need more memory run in groups, one after the other. For example, with the default on an
  // H200, and 8 KV heads with head_dim 128, a group has any number of sequences of up to 14
  // thousand tokens, or longer sequences with up to 475 thousand tokens together (decode_memory.h).
  int64_t max_partial_bytes = int64_t{64} << 20;
  // File that keeps the fastest algorithm of each product (kernels/cuda/gemm_cache.h). Empty: no
  // file, so every start times the algorithms again.
  std::string gemm_cache_path;
};

// Makes the library's device the calling thread's current device, as BindThread does on other
// threads. Errors: kInvalidArgument if options.dtype is neither kBF16 nor kF16;
// kFailedPrecondition, reason DEVICE, if cuBLASLt is missing. If cuBLASLt does not support the
// quantization, this function succeeds, but PrepareFor fails with kFailedPrecondition, reason
// DEVICE.
absl::StatusOr<std::unique_ptr<KernelBackend>> CreateGpuBackend(const GpuLibrary& library,
                                                                const GpuBackendOptions& options);

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_GPU_BACKEND_H_
