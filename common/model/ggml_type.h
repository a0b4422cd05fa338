// GgmlType is the type of a GGUF tensor: plain numbers, or blocks of numbers that share scales.
// Every type that ggml defines is here, so that a loader can name a type that it does not serve.
//
// Thread safety: a value type and free functions, safe from any thread.
// Units:         block sizes in elements, block_bytes in bytes.
// Source:        enum ggml_type and the block structures of ggml.
#ifndef QUIRE_COMMON_MODEL_GGML_TYPE_H_
#define QUIRE_COMMON_MODEL_GGML_TYPE_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace quire {

// The values are the numbers in files.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ8_1 = 9,
  kQ2K = 10,
  kQ3K = 11,
  kQ4K = 12,
  kQ5K = 13,
  kQ6K = 14,
  kQ8K = 15,
  kIq2Xxs = 16,
  kIq2Xs = 17,
  kIq3Xxs = 18,
  kIq1S = 19,
  kIq4Nl = 20,
  kIq3S = 21,
  kIq2S = 22,
  kIq4Xs = 23,
  kI8 = 24,
  kI16 = 25,
  kI32 = 26,
  kI64 = 27,
  kF64 = 28,
  kIq1M = 29,
  kBF16 = 30,
  kTq1_0 = 34,
  kTq2_0 = 35,
  kMxfp4 = 39,
  kNvfp4 = 40,
  kQ1_0 = 41,
};

struct GgmlTypeInfo {
  GgmlType type = GgmlType::kF32;
  std::string_view name;    // ggml's name: "F32", "Q4_K", "IQ4_NL"
  int64_t block_size = 1;   // elements of a block, all of one row
  int64_t block_bytes = 1;  // bytes of a block in the file
};

const GgmlTypeInfo& InfoOf(GgmlType type);

// Returns ggml's name of the type: "F32", "Q4_K", "IQ4_NL".
std::string_view NameOf(GgmlType type);

// Returns nullopt if ggml has no type with this number, or removed the type.
std::optional<GgmlType> GgmlTypeFromNumber(uint32_t number);

// Returns the name of a type that ggml removed ("Q4_0_4_4"), or "" if no removed type had this
// number.
std::string_view RemovedGgmlType(uint32_t number);

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_GGML_TYPE_H_
