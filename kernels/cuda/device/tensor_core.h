// ldmatrix, mma.m16n8k16 and prmt. REQUIRES (except for prmt): all 32 lanes of a warp call the
// function together, from one source line.
//
// Fragments, with g = lane / 4 and t = lane % 4 (PTX ISA, "Matrix fragments for mma.m16n8k16"):
//   a[r]: row g + 8 (r & 1), columns 2 t + 8 (r >> 1) and the next
//   b[r]: column g, rows 2 t + 8 r and the next
//   d[r]: row g + 8 (r >> 1), column 2 t + (r & 1)
//
// Thread safety: any warp of a kernel may call.
#ifndef QUIRE_KERNELS_CUDA_DEVICE_TENSOR_CORE_H_
#define QUIRE_KERNELS_CUDA_DEVICE_TENSOR_CORE_H_

#include "kernels/cuda/device/element.h"
#include "kernels/cuda/device/portability.h"

namespace quire::gpu {

#ifndef __CUDACC__
namespace emulator {

// Reads the row in instrumented code, since sanitizers do not see the emulator's own reads.
inline void TouchRow(const void* row) {
  const auto* words = static_cast<const volatile uint64_t*>(row);
  static_cast<void>(words[0]);
  static_cast<void>(words[1]);
}

}  // namespace emulator
#endif

// Loads four 8 x 8 matrices of 16-bit elements from shared memory. Lanes 8 i to 8 i + 7 point to
// the rows of matrix i (16 bytes each, 16-byte aligned). In each lane, r[i] receives two elements
// of matrix i: row g, columns 2 t and 2 t + 1, where g = lane / 4 and t = lane % 4.
QUIRE_DEVICE void LoadMatrixX4(uint32_t (&r)[4],
                               const void* row,
                               [[maybe_unused]] SourceLine at = SourceLine::Here()) {
#ifdef __CUDACC__
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
#else
  emulator::CheckAligned(row, 16, at);
  emulator::TouchRow(row);
  emulator::RunLoadMatrix(r, row, false, at);
#endif
}

// Does the same as LoadMatrixX4, but r[i] receives column g, rows 2 t and 2 t + 1 of matrix i,
// where g = lane / 4 and t = lane % 4.
QUIRE_DEVICE void LoadMatrixX4Transposed(uint32_t (&r)[4],
                                         const void* row,
                                         [[maybe_unused]] SourceLine at = SourceLine::Here()) {
#ifdef __CUDACC__
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
#else
  emulator::CheckAligned(row, 16, at);
  emulator::TouchRow(row);
  emulator::RunLoadMatrix(r, row, true, at);
#endif
}

// d += a * b, with fp32 sums. d is 16 x 8, a is 16 x 16, b is 16 x 8; elements of a and b are T.
template <typename T>
QUIRE_DEVICE void Mma16816(float (&d)[4],
                           const uint32_t (&a)[4],
                           const uint32_t (&b)[2],
                           [[maybe_unused]] SourceLine at = SourceLine::Here()) {
  static_assert(std::is_same_v<T, Bf16> || std::is_same_v<T, F16>);
#ifdef __CUDACC__
  if constexpr (std::is_same_v<T, Bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#else
  if constexpr (std::is_same_v<T, Bf16>) {
    emulator::RunMmaBf16(d, a, b, at);
  } else {
    emulator::RunMmaF16(d, a, b, at);
  }
#endif
}

// Returns four of the eight bytes of a and b. Bytes 0 to 3 are the bytes of a, lowest first, and
// bytes 4 to 7 are the bytes of b. Nibble i of selector says which of the eight becomes byte i of
// the result.
QUIRE_DEVICE uint32_t BytePermute(uint32_t a, uint32_t b, uint32_t selector) {
#ifdef __CUDACC__
  return __byte_perm(a, b, selector);
#else
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t byte = (selector >> (4 * i)) & 7;
    result |= static_cast<uint32_t>((bytes >> (8 * byte)) & 0xFF) << (8 * i);
  }
  return result;
#endif
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_DEVICE_TENSOR_CORE_H_
