// wgmma: matrix products of a warpgroup, for sm_90a alone. A warpgroup is four consecutive warps,
// of which the first has a number that is a multiple of four.
//
// A product runs asynchronously to the threads that start it. The product reads B from shared
// memory through a descriptor, reads A in the same way or from registers, and adds to an
// accumulator in registers. Until WaitProducts returns, no thread may write the operands, nor read
// or write the accumulator.
//
// Usage, in this order:
//   - the operands: copy them, WaitCopies, FenceAsyncProxy, and a barrier with the copying threads
//   - the products: FenceAccumulator, FenceWarpgroup, a WarpgroupMma per 16 of K, CommitProducts
//   - the results: WaitProducts<0>, FenceAccumulator. Now the accumulator holds the sums.
//
// Warp w of the four computes rows 16 w to 16 w + 15. Its fragments are those of mma.m16n8k16 for
// these rows, with g = lane / 4 and t = lane % 4 (PTX ISA, "Register Fragments for
// wgmma.m64nNk16"):
//   a[r]:    row g + 8 (r & 1), columns 2 t + 8 (r >> 1) and the next
//   d[n][r]: row g + 8 (r >> 1), column 8 n + 2 t + (r & 1)
//
// Thread safety: all threads of a warpgroup must call a function together, from one source line.
#ifndef QUIRE_KERNELS_CUDA_DEVICE_WARPGROUP_H_
#define QUIRE_KERNELS_CUDA_DEVICE_WARPGROUP_H_

#include "kernels/cuda/device/async_proxy.h"
#include "kernels/cuda/device/element.h"
#include "kernels/cuda/device/portability.h"

namespace quire::gpu {

inline constexpr int kWarpgroupSize = 128;
inline constexpr int kWarpgroupRows = 64;

// ---- Matrices in shared memory ------------------------------------------------------------------

// Rows are 128 bytes, swizzled: 16-byte unit u of row r is stored as unit u ^ (r % 8) of that row.
// The pattern repeats every 8 rows, and must begin at a multiple of 1024 bytes. Rows of 64 or 32
// bytes are swizzled like the pieces of kernels/api/kv_cache_layout.h, and their patterns begin at
// multiples of 512 and 256 bytes.
inline constexpr int kSwizzleRowBytes = 128;
inline constexpr int kSwizzleBytes = 1024;
QUIRE_DEVICE int SwizzledOffset(int row, int unit) {
  return row * kSwizzleRowBytes + ((unit ^ (row & 7)) << 4);
}

// Returns the pointer's address in PTX's shared state space. Descriptors hold such addresses.
QUIRE_DEVICE uint32_t SharedAddress(const void* pointer) {
#ifdef __CUDACC__
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
#else
  return emulator::SharedAddress(pointer);
#endif
}

// Returns the descriptor of a matrix in shared memory, stored as swizzled rows of 128, 64 or 32
// bytes. stride_bytes: distance from 8 rows to the next 8. If the product's dimension K is
// contiguous, a row belongs to one index of M or N, and leading_bytes is ignored. If M or N is
// contiguous, a row belongs to one index of K and holds some elements of M or N. leading_bytes is
// then the distance from the row to the row that holds the next elements.
template <int kRowBytes = kSwizzleRowBytes>
QUIRE_DEVICE uint64_t MakeDescriptor(const void* start, int leading_bytes, int stride_bytes) {
  static_assert(kRowBytes == 128 || kRowBytes == 64 || kRowBytes == 32);
  constexpr uint64_t kSwizzle = uint64_t{kRowBytes == 128 ? 1 : kRowBytes == 64 ? 2 : 3} << 62;
  return (SharedAddress(start) & 0x3FFFF) >> 4 | static_cast<uint64_t>(leading_bytes >> 4) << 16 |
         static_cast<uint64_t>(stride_bytes >> 4) << 32 | kSwizzle;
}

// Returns the descriptor of the matrix that starts `bytes` later. bytes: a multiple of 16.
QUIRE_DEVICE uint64_t Advance(uint64_t descriptor, int bytes) {
  // Adds to the lower half only, so that the compiler knows that the upper half is constant.
  const auto lower = static_cast<uint32_t>(descriptor) + static_cast<uint32_t>(bytes >> 4);
  return (descriptor >> 32 << 32) | lower;
}

// ---- Order --------------------------------------------------------------------------------------

// Orders ordinary instructions before products. Must be called after ordinary instructions have
// accessed registers of A or of the accumulator, and before the products that use these registers.
QUIRE_DEVICE void FenceWarpgroup([[maybe_unused]] SourceLine at = SourceLine::Here()) {
#ifdef __CUDACC__
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
  emulator::RunWgmmaFence(at);
#endif
}

// Puts all products that the warpgroup has started since its last CommitProducts into one group.
QUIRE_DEVICE void CommitProducts([[maybe_unused]] SourceLine at = SourceLine::Here()) {
#ifdef __CUDACC__
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  emulator::RunWgmmaCommit(at);
#endif
}

// Waits until at most kMaxPending of the warpgroup's groups of products are in flight.
template <int kMaxPending>
QUIRE_DEVICE void WaitProducts([[maybe_unused]] SourceLine at = SourceLine::Here()) {
#ifdef __CUDACC__
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kMaxPending) : "memory");
#else
  emulator::RunWgmmaWait(kMaxPending, at);
#endif
}

// Keeps the compiler from moving accesses to the accumulator past this call. The compiler does
// not know that products can still write the accumulator until WaitProducts returns.
template <int kTiles>
QUIRE_DEVICE void FenceAccumulator([[maybe_unused]] float (&d)[kTiles][4]) {
#ifdef __CUDACC__
  QUIRE_UNROLL
  for (int n = 0; n < kTiles; ++n) {
    QUIRE_UNROLL
    for (int r = 0; r < 4; ++r) {
      asm volatile("" : "+f"(d[n][r])::"memory");
    }
  }
#endif
}

// Does for fragments of A what FenceAccumulator does for d, since products read A until
// WaitProducts returns. Must be called before the products start, and after WaitProducts.
template <int kFragments>
QUIRE_DEVICE void FenceFragments([[maybe_unused]] uint32_t (&a)[kFragments][4]) {
#ifdef __CUDACC__
  QUIRE_UNROLL
  for (int n = 0; n < kFragments; ++n) {
    QUIRE_UNROLL
    for (int r = 0; r < 4; ++r) {
      asm volatile("" : "+r"(a[n][r])::"memory");
    }
  }
#endif
}

// Raises the number of registers of each thread of the warpgroup to kRegisters. All threads start
// with equally many, so TakeRegisters waits until other warpgroups have given up enough registers.
template <int kRegisters>
QUIRE_DEVICE void TakeRegisters() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 240);
#ifdef __CUDACC__
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
// Lowers the number of registers of each thread of the warpgroup to kRegisters.
template <int kRegisters>
QUIRE_DEVICE void GiveUpRegisters() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 240);
#ifdef __CUDACC__
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

// ---- Products -----------------------------------------------------------------------------------

#ifdef __CUDACC__

// 4, 8, 16, 32 and 64 operands of an accumulator.
#define QUIRE_D4(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define QUIRE_D8(n) QUIRE_D4(n), QUIRE_D4((n) + 1)
#define QUIRE_D16(n) QUIRE_D4(n), QUIRE_D4((n) + 1), QUIRE_D4((n) + 2), QUIRE_D4((n) + 3)
#define QUIRE_D32(n) QUIRE_D16(n), QUIRE_D16((n) + 4)
#define QUIRE_D64 QUIRE_D32(0), QUIRE_D32(8)
// Names of these operands in PTX.
#define QUIRE_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define QUIRE_NAMES_16 QUIRE_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define QUIRE_NAMES_32                         \
  QUIRE_NAMES_16                               \
  ", %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define QUIRE_NAMES_64                         \
  QUIRE_NAMES_32                               \
  ", %32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47, "   \
  "%48, %49, %50, %51, %52, %53, %54, %55, "   \
  "%56, %57, %58, %59, %60, %61, %62, %63"

// operands: PTX's operands after the accumulator. They are A, B, the predicate p that says whether
// to accumulate, the signs of A and B, and two flags, which say whether A and B are transposed. If
// A is in registers, only the flag for B exists. accumulates: the register from which p is set.
#define QUIRE_WGMMA(shape, type, names, operands, accumulates, ...)                      \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " accumulates                           \
               ", 0;\n"                                                                  \
               "wgmma.mma_async.sync.aligned." shape "k16.f32." type "." type " {" names \
               "}, " operands ";\n}\n"                                                   \
               : __VA_ARGS__)

#endif  // __CUDACC__

// d = a * b^T, or d += a * b^T if `accumulates`. d is 64 x kColumns, a is 64 x 16, and b is
// kColumns x 16. The elements of a and b have type T; K is contiguous in both.
template <typename T, int kColumns>
QUIRE_DEVICE void WarpgroupMma([[maybe_unused]] float (&d)[kColumns / 8][4],
                               [[maybe_unused]] uint64_t a,
                               [[maybe_unused]] uint64_t b,
                               [[maybe_unused]] bool accumulates,
                               [[maybe_unused]] SourceLine at = SourceLine::Here()) {
  static_assert(std::is_same_v<T, Bf16> || std::is_same_v<T, F16>);
  static_assert(kColumns == 64 || kColumns == 128);
#ifdef __CUDACC__
#define QUIRE_INPUTS "l"(a), "l"(b), "r"(accumulates ? 1 : 0)
  if constexpr (kColumns == 64 && std::is_same_v<T, Bf16>) {
    QUIRE_WGMMA("m64n64", "bf16", QUIRE_NAMES_32, "%32, %33, p, 1, 1, 0, 0", "%34", QUIRE_D32(0)
                : QUIRE_INPUTS);
  } else if constexpr (kColumns == 64) {
    QUIRE_WGMMA("m64n64", "f16", QUIRE_NAMES_32, "%32, %33, p, 1, 1, 0, 0", "%34", QUIRE_D32(0)
                : QUIRE_INPUTS);
  } else if constexpr (std::is_same_v<T, Bf16>) {
    QUIRE_WGMMA("m64n128", "bf16", QUIRE_NAMES_64, "%64, %65, p, 1, 1, 0, 0", "%66", QUIRE_D64
                : QUIRE_INPUTS);
  } else {
    QUIRE_WGMMA("m64n128", "f16", QUIRE_NAMES_64, "%64, %65, p, 1, 1, 0, 0", "%66", QUIRE_D64
                : QUIRE_INPUTS);
  }
#undef QUIRE_INPUTS
#else
  emulator::RunWgmma({.d = &d[0][0],
                      .a_descriptor = a,
                      .b_descriptor = b,
                      .num_columns = kColumns,
                      .b_is_column_major = true,
                      .accumulates = accumulates,
                      .is_bf16 = std::is_same_v<T, Bf16>},
                     at);
#endif
}

// d += a * b. d is 64 x kColumns, a is 64 x 16 in registers, and b is 16 x kColumns. The elements
// of a and b have type T; N is contiguous in b.
template <typename T, int kColumns>
QUIRE_DEVICE void WarpgroupMmaOfRegisters([[maybe_unused]] float (&d)[kColumns / 8][4],
                                          [[maybe_unused]] const uint32_t (&a)[4],
                                          [[maybe_unused]] uint64_t b,
                                          [[maybe_unused]] SourceLine at = SourceLine::Here()) {
  static_assert(std::is_same_v<T, Bf16> || std::is_same_v<T, F16>);
  static_assert(kColumns == 16 || kColumns == 32 || kColumns == 64 || kColumns == 128);
#ifdef __CUDACC__
#define QUIRE_INPUTS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1)
  if constexpr (kColumns == 16 && std::is_same_v<T, Bf16>) {
    QUIRE_WGMMA(
        "m64n16", "bf16", QUIRE_NAMES_8, "{%8, %9, %10, %11}, %12, p, 1, 1, 1", "%13", QUIRE_D8(0)
        : QUIRE_INPUTS);
  } else if constexpr (kColumns == 16) {
    QUIRE_WGMMA(
        "m64n16", "f16", QUIRE_NAMES_8, "{%8, %9, %10, %11}, %12, p, 1, 1, 1", "%13", QUIRE_D8(0)
        : QUIRE_INPUTS);
  } else if constexpr (kColumns == 32 && std::is_same_v<T, Bf16>) {
    QUIRE_WGMMA("m64n32",
                "bf16",
                QUIRE_NAMES_16,
                "{%16, %17, %18, %19}, %20, p, 1, 1, 1",
                "%21",
                QUIRE_D16(0)
                : QUIRE_INPUTS);
  } else if constexpr (kColumns == 32) {
    QUIRE_WGMMA("m64n32",
                "f16",
                QUIRE_NAMES_16,
                "{%16, %17, %18, %19}, %20, p, 1, 1, 1",
                "%21",
                QUIRE_D16(0)
                : QUIRE_INPUTS);
  } else if constexpr (kColumns == 64 && std::is_same_v<T, Bf16>) {
    QUIRE_WGMMA("m64n64",
                "bf16",
                QUIRE_NAMES_32,
                "{%32, %33, %34, %35}, %36, p, 1, 1, 1",
                "%37",
                QUIRE_D32(0)
                : QUIRE_INPUTS);
  } else if constexpr (kColumns == 64) {
    QUIRE_WGMMA("m64n64",
                "f16",
                QUIRE_NAMES_32,
                "{%32, %33, %34, %35}, %36, p, 1, 1, 1",
                "%37",
                QUIRE_D32(0)
                : QUIRE_INPUTS);
  } else if constexpr (std::is_same_v<T, Bf16>) {
    QUIRE_WGMMA(
        "m64n128", "bf16", QUIRE_NAMES_64, "{%64, %65, %66, %67}, %68, p, 1, 1, 1", "%69", QUIRE_D64
        : QUIRE_INPUTS);
  } else {
    QUIRE_WGMMA(
        "m64n128", "f16", QUIRE_NAMES_64, "{%64, %65, %66, %67}, %68, p, 1, 1, 1", "%69", QUIRE_D64
        : QUIRE_INPUTS);
  }
#undef QUIRE_INPUTS
#else
  emulator::RunWgmma({.d = &d[0][0],
                      .a = a,
                      .b_descriptor = b,
                      .num_columns = kColumns,
                      .b_is_column_major = false,
                      .accumulates = true,
                      .is_bf16 = std::is_same_v<T, Bf16>},
                     at);
#endif
}

#ifdef __CUDACC__
#undef QUIRE_WGMMA
#undef QUIRE_NAMES_64
#undef QUIRE_NAMES_32
#undef QUIRE_NAMES_16
#undef QUIRE_NAMES_8
#undef QUIRE_D64
#undef QUIRE_D32
#undef QUIRE_D16
#undef QUIRE_D8
#undef QUIRE_D4
#endif

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_DEVICE_WARPGROUP_H_
