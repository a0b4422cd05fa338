// ParseJson reads JSON from files that may be hostile: strict UTF-8, no duplicate keys, bounded
// depth, no trailing bytes. Built on nlohmann/json, whose parser and destructor do not recurse.
//
// Thread safety: free functions, safe from any thread.
// Cost:          about 20 MB/s; memory a small multiple of the text.
#ifndef QUIRE_COMMON_JSON_JSON_H_
#define QUIRE_COMMON_JSON_JSON_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace quire {

using Json = nlohmann::json;

// Errors: kInvalidArgument with reason JSON and the byte offset of the fault.
absl::StatusOr<Json> ParseJson(std::string_view text, int max_depth = 64);

// Reads a whole file and parses it. Errors: kNotFound when it is missing, kInvalidArgument as
// above or when the file is longer than max_bytes; the message starts with the path.
absl::StatusOr<Json> ParseJsonFile(const std::string& path, int64_t max_bytes);

// Reads a regular file of at most max_bytes. Errors as for ParseJsonFile.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes);

}  // namespace quire

#endif  // QUIRE_COMMON_JSON_JSON_H_
