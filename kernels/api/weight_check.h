// FirstNotFiniteBlock finds weights that would make every answer NaN.
//
// Thread safety: free function, safe from any thread.
// Cost:          reads the scales alone, except those of F32, F16 and BF16, where it reads all
//                bytes. No allocation.
#ifndef QUIRE_KERNELS_API_WEIGHT_CHECK_H_
#define QUIRE_KERNELS_API_WEIGHT_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/api/weight_format.h"

namespace quire {

// Returns the index of the first block whose scale or minimum is not finite, or which has a weight
// that is not finite; nullopt if there is none. Only MXFP4 has finite scales that make infinite
// weights. Its exponent 255 is NaN, although Dequantize decodes the exponent as ggml does, as
// 2^128. In F32, F16 and BF16 a block is one weight. REQUIRES: `from` is whole blocks.
std::optional<int64_t> FirstNotFiniteBlock(WeightFormat format, std::span<const std::byte> from);

}  // namespace quire

#endif  // QUIRE_KERNELS_API_WEIGHT_CHECK_H_
