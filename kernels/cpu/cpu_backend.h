// CreateCpuBackend makes the CPU implementation of KernelBackend.
//
// Five instruction-set paths are compiled in, and the first that the machine supports is used: AMX
// with bf16 products, AVX-512 with bf16 products, AVX-512, AVX2 with FMA, and portable C++. The
// first two differ from the third only for bf16 weights and a bf16 KV cache: they round the other
// inputs of products to bf16 too, and multiply at twice the rate or more. Within one path a result
// has the same bits for any batch, chunking and number of threads; across paths results agree to
// rounding.
//
// Thread safety: CreateCpuBackend from any thread; the backend as KernelBackend says.
#ifndef QUIRE_KERNELS_CPU_CPU_BACKEND_H_
#define QUIRE_KERNELS_CPU_CPU_BACKEND_H_

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"

#include "kernels/api/kernel_backend.h"

namespace quire {

struct CpuBackendOptions {
  int num_threads = 0;  // 0: one for each CPU that this process may use (affinity, cgroup quota)
  int num_sharers = 1;  // processes that share the CPUs, if num_threads is 0
  std::string_view isa =
      "";  // "": the first supported one; or "amx", "avx512bf16", "avx512", "avx2", "portable"
};

// Returns the number of threads of a backend with these options.
int NumThreads(const CpuBackendOptions& options);

// Errors: kInvalidArgument for an unknown isa; kFailedPrecondition if the machine lacks it.
absl::StatusOr<std::unique_ptr<KernelBackend>> CreateCpuBackend(const CpuBackendOptions& options);

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_CPU_BACKEND_H_
