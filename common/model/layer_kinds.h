// NormKind and ActivationKind: which function a layer of a model computes. kernels/api/dense.h says
// what each of them is.
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
