// DType is the storage type of a number. On the CPU, activations are always kF32.
//
// Thread safety: a value type.
#ifndef QUIRE_COMMON_MODEL_DTYPE_H_
#define QUIRE_COMMON_MODEL_DTYPE_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace quire {

// kF8E4M3: 4 bits of exponent, 3 of mantissa, no infinity. For KV caches, and for a GPU's matrix
// products with --quantization=fp8. A KV cache of this type has scale factors per token only if the
// backend's layout has them (kernels/api/kv_cache_layout.h).
//
// kInt8: a signed integer. For KV caches only, always with scale factors.
enum class DType : uint8_t { kF32 = 1, kF16 = 2, kBF16 = 3, kF8E4M3 = 4, kInt8 = 5 };

// Returns the bytes of one number.
constexpr int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kF8E4M3:
    case DType::kInt8:
      return 1;
    default:
      return 2;
  }
}

// Returns the name of a type. "float32", "float16" and "bfloat16" are also the names in config.json
// and the flags; the other names appear only in messages.
constexpr std::string_view NameOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float32";
    case DType::kF16:
      return "float16";
    case DType::kBF16:
      return "bfloat16";
    case DType::kF8E4M3:
      return "float8_e4m3";
    case DType::kInt8:
      return "int8";
  }
  return "unknown";
}

// Returns the type with this name if weights can have the type, else nullopt.
constexpr std::optional<DType> DTypeFromName(std::string_view name) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (NameOf(dtype) == name) {
      return dtype;
    }
  }
  return std::nullopt;
}

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_DTYPE_H_
