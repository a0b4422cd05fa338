// Options of quantized weights on a CPU.
//
// Thread safety: value types.
#ifndef QUIRE_KERNELS_CPU_QUANTIZATION_H_
#define QUIRE_KERNELS_CPU_QUANTIZATION_H_

#include <cstdint>

namespace quire {

// How inputs are rounded before they are multiplied by quantized weights.
enum class InputType : uint8_t {
  kInt8,  // rounded to 8 bits: fast
  kF32,   // not rounded: slower with many rows
};

// The type to which unquantized weights are rounded when they are packed. Quantized parts of a
// LinearSource stay as they are.
enum class CpuQuantization : uint8_t {
  kNone,
  kInt8,  // Q8_0: 8 bits, one scale per 32 weights of a row
  kInt4,  // Q4_0 if LinearSource::is_quantizable, else Q8_0
};

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_QUANTIZATION_H_
