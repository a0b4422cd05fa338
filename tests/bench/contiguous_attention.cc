#include "tests/bench/contiguous_attention.h"

namespace quire {

ContiguousAttention FindContiguousAttention([[maybe_unused]] std::string_view isa,
                                            [[maybe_unused]] DType dtype) {
#if defined(__x86_64__)
  if (dtype == DType::kF32 && (isa == "avx512" || isa == "avx512bf16" || isa == "amx")) {
    return &ContiguousAttentionF32;
  }
  if (dtype == DType::kBF16 && isa == "avx512bf16") {
    return &ContiguousAttentionPairs;
  }
  if (dtype == DType::kBF16 && isa == "amx") {
    return &ContiguousAttentionTileOrder;
  }
#endif
  return nullptr;
}

}  // namespace quire
