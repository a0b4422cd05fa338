// Options of quantized weights on a CPU.
//
// Thread safety: value types.
#ifndef QUIRE_KERNELS_CPU_QUANTIZATION_H_
#define QUIRE_KERNELS_CPU_QUANTIZATION_H_

#include <cstdint>

namespace quire {

// The inputs that quantized weights are multiplied by.
enum class InputType : uint8_t {
  kInt8,  // rounded to 8 bits: fast
  kF32,   // not rounded: slower with many rows
};

// The type to which plain weights are rounded when they are packed. Quantized parts of a
// LinearSource stay as they are.
enum class CpuQuantization : uint8_t {
  kNone,
  kInt8,  // Q8_0: 8 bits, a scale for each 32 weights of a row
  kInt4,  // Q4_0 in the layers, Q8_0 in other matrices
};

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_QUANTIZATION_H_
