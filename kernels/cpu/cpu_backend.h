// CreateCpuBackend makes the CPU implementation of KernelBackend.
//
// Five instruction-set paths are compiled in, in this order: AMX with bf16 products, AVX-512 with
// bf16 products, AVX-512, AVX2 with FMA, and portable C++. The first path that the machine supports
// is used. In products with bf16 weights or a bf16 KV cache, the two paths with bf16 products round
// the other factor to bf16 too, and multiply at least twice as fast as plain AVX-512. In all other
// operations they give the same bits as plain AVX-512.
//
// Within one path, a result has the same bits for any batch, prefill chunks and number of threads.
// Results of different paths differ by rounding.
//
// Thread safety: CreateCpuBackend is safe from any thread. For the backend see KernelBackend.
#ifndef QUIRE_KERNELS_CPU_CPU_BACKEND_H_
#define QUIRE_KERNELS_CPU_CPU_BACKEND_H_

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"

#include "kernels/api/kernel_backend.h"
#include "kernels/cpu/quantization.h"

namespace quire {

struct CpuBackendOptions {
  int num_threads = 0;  // 0: one for each CPU that this process may use (affinity, cgroup quota)
  int num_sharers = 1;  // if num_threads is 0: how many processes share the CPUs
  // "amx", "avx512bf16", "avx512", "avx2" or "portable"; "": the first of these that the machine
  // supports.
  std::string_view isa = "";
  InputType input_type = InputType::kInt8;
  CpuQuantization quantization = CpuQuantization::kNone;
};

int NumThreads(const CpuBackendOptions& options);

// Errors: kInvalidArgument if isa is unknown or num_threads is out of range; kFailedPrecondition if
// the machine does not support isa.
absl::StatusOr<std::unique_ptr<KernelBackend>> CreateCpuBackend(const CpuBackendOptions& options);

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_CPU_BACKEND_H_
