// Quantize writes fp32 weights as Q8_0 or Q4_0, as ggml's reference functions do.
//
// Thread safety: free function, safe from any thread.
// Cost:          CPU time alone, no allocation.
// Source:        ggml's quantize_row_q8_0_ref and quantize_row_q4_0_ref.
#ifndef QUIRE_KERNELS_API_QUANTIZE_H_
#define QUIRE_KERNELS_API_QUANTIZE_H_

#include <cstddef>
#include <span>

#include "kernels/api/weight_format.h"

namespace quire {

// Fills `out` with the bytes that ggml's functions and gguf.quants.quantize give, except in two
// cases, where these leave the codes undefined. If 1 / scale overflows (absolute values below
// 2^-121 in Q8_0, 2^-125 in Q4_0), all codes are those of 0. If a weight is not finite, neither is
// the scale of its block, and all codes are those of 0. The scale is infinite also if it exceeds
// binary16. FirstNotFiniteBlock (weight_check.h) finds both.
//
// REQUIRES: format is kQ8_0 or kQ4_0; out.size() is NumBytes(format, weights.size()).
void Quantize(WeightFormat format, std::span<const float> weights, std::span<std::byte> out);

}  // namespace quire

#endif  // QUIRE_KERNELS_API_QUANTIZE_H_
