// KernelTable is the set of kernels compiled for one instruction set. CpuBackend picks one table at
// creation and calls its kernels; the rest of the backend is the same for all tables.
//
// Most kernels are templates over a Simd struct in <op>_kernel.inl.h. Sources named after the
// instruction set, such as dense_avx512.cc and dense_avx2.cc, instantiate the templates and are
// compiled for that instruction set.
//
// Thread safety: tables are constants; a kernel has one caller at a time per team.
#ifndef QUIRE_KERNELS_CPU_KERNEL_TABLE_H_
#define QUIRE_KERNELS_CPU_KERNEL_TABLE_H_

#include <span>

#include "kernels/api/attention.h"
#include "kernels/api/dense.h"
#include "kernels/api/kernel_backend.h"
#include "kernels/api/sampling.h"
#include "kernels/cpu/packed_linear.h"
#include "kernels/cpu/quantized_kernels.h"
#include "kernels/cpu/thread_team.h"

namespace quire {

struct KernelTable {
  const char* isa = "";            // as CpuBackendOptions::isa
  PanelShape panel;                // shape of the packed weights that `linear` reads
  int32_t full_step_tokens = 256;  // as KernelBackend::full_step_tokens
  void (*embed)(const EmbeddingParams& params, ThreadTeam& team) = nullptr;
  void (*norm)(const NormParams& params, ThreadTeam& team) = nullptr;
  void (*linear)(const LinearParams& params, ThreadTeam& team) = nullptr;
  const QuantizedKernels* quantized = nullptr;  // products of weights that stay quantized
  void (*activate)(const ActivationParams& params, ThreadTeam& team) = nullptr;
  // Returns false, without effect, if the params are not supported. Null: there is no such kernel.
  bool (*mlp)(const MlpParams& params, ThreadTeam& team) = nullptr;
  void (*prepare_attention)(const PrepareAttentionParams& params, ThreadTeam& team) = nullptr;
  void (*paged_attention)(const PagedAttentionParams& params, ThreadTeam& team) = nullptr;
  void (*copy_blocks)(const CopyBlocksParams& params, ThreadTeam& team) = nullptr;
  void (*sample)(const SampleParams& params, ThreadTeam& team) = nullptr;
};

// Returns all compiled tables, in order of preference. AVX paths exist on x86-64 only.
std::span<const KernelTable> KernelTables();

// Returns whether this machine and its operating system can run the table's instructions. If the
// table uses tile registers, asks Linux for permission to use them.
bool IsSupported(const KernelTable& table);

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_KERNEL_TABLE_H_
