// Converts between DType and v1::DType, its form on the wire.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_COMMON_WIRE_DTYPE_CODEC_H_
#define QUIRE_COMMON_WIRE_DTYPE_CODEC_H_

#include <optional>

#include "proto/v1/types.pb.h"

#include "common/model/dtype.h"

namespace quire {

inline v1::DType ToProto(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return v1::DTYPE_F32;
    case DType::kF16:
      return v1::DTYPE_F16;
    case DType::kBF16:
      return v1::DTYPE_BF16;
    case DType::kF8E4M3:
      return v1::DTYPE_F8_E4M3;
    case DType::kInt8:
      return v1::DTYPE_INT8;
  }
  return v1::DTYPE_UNSPECIFIED;
}

// Returns nullopt for DTYPE_UNSPECIFIED and for values of a later version.
inline std::optional<DType> FromProto(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_F32:
      return DType::kF32;
    case v1::DTYPE_F16:
      return DType::kF16;
    case v1::DTYPE_BF16:
      return DType::kBF16;
    case v1::DTYPE_F8_E4M3:
      return DType::kF8E4M3;
    case v1::DTYPE_INT8:
      return DType::kInt8;
    default:
      return std::nullopt;
  }
}

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_DTYPE_CODEC_H_
