// GgufHeader is the header of one GGUF file: metadata, and the place of each tensor. Every tensor
// lies inside the file, is aligned, and overlaps no other tensor.
//
// Thread safety: a value type and a free function, safe from any thread.
// Units:         offsets and sizes in bytes.
// Errors:        kInvalidArgument, reason MODEL_FILE, message "load: <file>: <rule>" or
//                "load: <file>: <tensor or key>: <rule>".
// Cost:          allocates in proportion to the header's size, never to a number in the header.
// Source:        docs/gguf.md of the ggml project, versions 2 and 3, little endian.
#ifndef QUIRE_COMMON_MODEL_GGUF_HEADER_H_
#define QUIRE_COMMON_MODEL_GGUF_HEADER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "common/model/ggml_type.h"
#include "common/model/gguf_metadata.h"
#include "common/model/regular_file.h"

namespace quire {

// Upper bounds on a header's numbers. They bound the memory of a hostile file; published models
// stay far below them.
inline constexpr int64_t kMaxGgufTensors = 100'000;
inline constexpr int64_t kMaxGgufKeys = 65'536;
inline constexpr int64_t kMaxGgufArrayElements = int64_t{1} << 23;  // twice the largest vocabulary
inline constexpr uint64_t kMaxGgufKeyBytes = 65'535;                // the format's own limit
inline constexpr uint64_t kMaxGgufTensorNameBytes = 256;            // ggml's own limit is 64
inline constexpr uint32_t kMaxGgufRank = 4;                         // the format's own limit
inline constexpr int64_t kMinGgufAlignment = 8;                     // the format's own limit
inline constexpr int64_t kMaxGgufAlignment = 65'536;
inline constexpr std::string_view kGgufAlignmentKey = "general.alignment";

struct GgufTensor {
  std::string name;
  GgmlType type = GgmlType::kF32;
  // Row-major like a safetensors shape: the elements of the last dimension are contiguous. The file
  // has the reverse order. Every size is at least 1; a scalar has no dimension.
  std::vector<int64_t> shape;
  int32_t part = 0;    // index of the part in a split model, from 0
  int64_t offset = 0;  // from the start of the part's file
  int64_t bytes = 0;   // at least 1
};

struct GgufHeader {
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;  // sorted by offset; names may repeat
  int64_t bytes = 0;                // without the padding after it
};

// Reads the header. max_bytes: limit of its size. Sets part 0 in each tensor.
absl::StatusOr<GgufHeader> ReadGgufHeader(const RegularFile& file, int64_t max_bytes);

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_GGUF_HEADER_H_
