// GgufSplitName is the file name of a part of a split GGUF model: NAME-00002-of-00003.gguf.
//
// Thread safety: a value type and free functions, safe from any thread.
#ifndef QUIRE_COMMON_MODEL_GGUF_SPLIT_NAME_H_
#define QUIRE_COMMON_MODEL_GGUF_SPLIT_NAME_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quire {

struct GgufSplitName {
  std::string prefix;     // NAME
  int32_t number = 1;     // of the part, from 1
  int32_t num_parts = 1;  // at least `number`

  // Returns the file name of another part. REQUIRES: 1 <= part_number <= num_parts.
  std::string OfPart(int32_t part_number) const;
};

// Returns nullopt if the file is not named like a part.
std::optional<GgufSplitName> ParseGgufSplitName(std::string_view file_name);

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_GGUF_SPLIT_NAME_H_
