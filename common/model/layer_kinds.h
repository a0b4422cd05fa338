// NormKind and ActivationKind name the norms and activation functions of a model's layers.
// kernels/api/dense.h defines these functions.
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
