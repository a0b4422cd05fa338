// Dequantize decodes weights of any WeightFormat to fp32.
//
// Thread safety: free function, safe from any thread.
// Cost:          CPU time alone, no allocation. tests/bench/dequantize_bench.cc measures it.
#ifndef QUIRE_KERNELS_API_DEQUANTIZE_H_
#define QUIRE_KERNELS_API_DEQUANTIZE_H_

#include <cstddef>
#include <span>

#include "kernels/api/weight_format.h"

namespace quire {

// Fills `out`, in the order of the row. Each weight has the bits that gguf.quants.dequantize of
// ggml's Python package gives, except NaN, whose payload may differ. `from` needs no alignment.
// REQUIRES: from.size() is NumBytes(format, out.size()).
void Dequantize(WeightFormat format, std::span<const std::byte> from, std::span<float> out);

}  // namespace quire

#endif  // QUIRE_KERNELS_API_DEQUANTIZE_H_
