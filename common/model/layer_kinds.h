// NormKind and ActivationKind name functions of a model's layers, defined in kernels/api/dense.h.
//
// Thread safety: value types.
#ifndef QUIRE_COMMON_MODEL_LAYER_KINDS_H_
#define QUIRE_COMMON_MODEL_LAYER_KINDS_H_

#include <cstdint>

namespace quire {

enum class NormKind : uint8_t { kRmsNorm, kLayerNorm };
enum class ActivationKind : uint8_t { kSilu, kRelu, kGelu, kGeluTanh };

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_LAYER_KINDS_H_
