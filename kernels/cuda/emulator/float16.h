// Converts 16-bit numbers to fp32, four at a time, for the emulated matrix instructions.
//
// Thread safety: any thread may call.
#ifndef QUIRE_KERNELS_CUDA_EMULATOR_FLOAT16_H_
#define QUIRE_KERNELS_CUDA_EMULATOR_FLOAT16_H_

#include <bit>
#include <cstdint>

namespace quire::gpu::emulator {

using Words = uint32_t __attribute__((vector_size(16)));
using Floats = float __attribute__((vector_size(16)));

// bits: four 16-bit numbers, each in the lower half of its word.
template <bool kBf16>
Floats ToFloats(Words bits) {
  if constexpr (kBf16) {
    return std::bit_cast<Floats>(bits << 16);
  } else {  // the same steps as in portable::FloatFromF16
    const Words magnitude = (bits & 0x7FFF) << 13;
    const Words scaled = std::bit_cast<Words>(std::bit_cast<Floats>(magnitude) * 0x1p112F);
    const auto special = std::bit_cast<Words>((bits & 0x7C00) == 0x7C00);
    return std::bit_cast<Floats>((special & (magnitude | 0x7F800000)) | (~special & scaled) |
                                 (bits & 0x8000) << 16);
  }
}

}  // namespace quire::gpu::emulator

#endif  // QUIRE_KERNELS_CUDA_EMULATOR_FLOAT16_H_
