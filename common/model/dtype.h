// DType names how a number is stored. Computation on the CPU is always in kF32.
//
// Thread safety: a value type.
#ifndef QUIRE_COMMON_MODEL_DTYPE_H_
#define QUIRE_COMMON_MODEL_DTYPE_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace quire {

enum class DType : uint8_t { kF32 = 1, kF16 = 2, kBF16 = 3 };

constexpr int64_t SizeOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }  // bytes

// "float32", "float16", "bfloat16": the names of config.json and of the flags.
constexpr std::string_view NameOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float32";
    case DType::kF16:
      return "float16";
    case DType::kBF16:
      return "bfloat16";
  }
  return "unknown";
}

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
