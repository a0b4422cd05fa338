#include "kernels/cpu/kernel_table.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <unistd.h>

#include <sys/syscall.h>
#endif

#include <string_view>

#include "kernels/cpu/copy_blocks.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/paged_attention.h"
#include "kernels/cpu/prepare_attention.h"
#include "kernels/cpu/row_scan.h"
#include "kernels/cpu/sampling.h"

namespace quire {
namespace {

#if defined(__x86_64__)

constexpr KernelTable kAvx512 = {
    .isa = "avx512",
    .panel = kAvx512Panel,
    .embed = &EmbedAvx512,
    .norm = &NormAvx512,
    .linear = &LinearAvx512,
    .quantized = &kQuantizedAvx512,
    .activate = &ActivateAvx512,
    .prepare_attention = &PrepareAttentionAvx512,
    .paged_attention = &PagedAttentionAvx512,
    .copy_blocks = &CopyBlocks,
    .sample = [](const SampleParams& params,
                 ThreadTeam& team) { Sample(params, RowScanAvx512(), team); },
};

constexpr KernelTable Avx512Bf16() {
  KernelTable table = kAvx512;
  table.isa = "avx512bf16";
  table.linear = &LinearAvx512Bf16;
  table.quantized = &kQuantizedVnni;
  table.paged_attention = &PagedAttentionAvx512Bf16;
  return table;
}

constexpr KernelTable Amx() {
  KernelTable table = Avx512Bf16();
  table.isa = "amx";
  table.panel = kAmxPanel;
  table.full_step_tokens = 512;
  table.linear = &LinearAmx;
  table.mlp = &MlpAmx;
  table.paged_attention = &PagedAttentionAmx;
  return table;
}

constexpr KernelTable kAvx2 = {
    .isa = "avx2",
    .panel = kAvx2Panel,
    .embed = &EmbedAvx2,
    .norm = &NormAvx2,
    .linear = &LinearAvx2,
    .quantized = &kQuantizedAvx2,
    .activate = &ActivateAvx2,
    .prepare_attention = &PrepareAttentionAvx2,
    .paged_attention = &PagedAttentionAvx2,
    .copy_blocks = &CopyBlocks,
    .sample = [](const SampleParams& params,
                 ThreadTeam& team) { Sample(params, RowScanAvx2(), team); },
};

#endif

constexpr KernelTable kPortable = {
    .isa = "portable",
    .panel = kPortablePanel,
    .embed = &EmbedPortable,
    .norm = &NormPortable,
    .linear = &LinearPortable,
    .quantized = &kQuantizedPortable,
    .activate = &ActivatePortable,
    .prepare_attention = &PrepareAttentionPortable,
    .paged_attention = &PagedAttentionPortable,
    .copy_blocks = &CopyBlocks,
    .sample = [](const SampleParams& params,
                 ThreadTeam& team) { Sample(params, RowScanPortable(), team); },
};

#if defined(__x86_64__)
// All tables, in order of preference. For bf16 weights or a bf16 KV cache, amx and avx512bf16 round
// the other factor of each product to bf16 too. This loses no more precision than storing the
// weights or the cache in bf16 does. For other types these two tables give the bits of avx512.
constexpr KernelTable kTables[] = {Amx(), Avx512Bf16(), kAvx512, kAvx2, kPortable};
#else
constexpr KernelTable kTables[] = {kPortable};
#endif

#if defined(__x86_64__)
// Asks cpuid, because clang's __builtin_cpu_supports does not know F16C. Does not ask whether the
// operating system saves the registers: F16C uses only AVX registers, which the check for AVX2
// covers.
bool HasF16C() {
  unsigned int eax = 0;
  unsigned int ebx = 0;
  unsigned int ecx = 0;
  unsigned int edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

// Returns whether this process may use tile registers; asks Linux for permission. Linux saves these
// registers, 8 KiB per thread, only for processes that have asked for permission.
bool MayUseTiles() {
#if defined(__linux__)
  constexpr unsigned int kTileAndBf16 = 1U << 24 | 1U << 22;
  unsigned int eax = 0;
  unsigned int ebx = 0;
  unsigned int ecx = 0;
  unsigned int edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 ||
      (edx & kTileAndBf16) != kTileAndBf16) {
    return false;
  }
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

}  // namespace

std::span<const KernelTable> KernelTables() { return kTables; }

bool IsSupported(const KernelTable& table) {
  const std::string_view isa = table.isa;
#if defined(__x86_64__)
  // __builtin_cpu_supports also checks that the operating system saves the vector registers.
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16C();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  // Every CPU with bf16 products has VNNI; a hypervisor could still hide it.
  const bool avx512bf16 =
      avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
  if (isa == "amx") {
    return avx512bf16 && MayUseTiles();
  }
  if (isa == "avx512bf16") {
    return avx512bf16;
  }
  if (isa == "avx512") {
    return avx512;
  }
  if (isa == "avx2") {
    return avx2;
  }
#endif
  return isa == "portable";
}

}  // namespace quire
