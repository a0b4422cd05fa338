// ParseJson reads JSON from files that may be hostile: strict UTF-8, no duplicate keys, no trailing
// bytes, so deep and so many values and no more. Built on nlohmann/json, whose parser and
// destructor do not recurse.
//
// Thread safety: free functions, safe from any thread.
// Cost:          linear, but for the order of keys. Memory: at most 256 bytes a value and twice its
//                text, and some times the longest string while that is read. Nothing is read after
//                the first fault.
#ifndef QUIRE_COMMON_JSON_JSON_H_
#define QUIRE_COMMON_JSON_JSON_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace quire {

using Json = nlohmann::json;

struct JsonLimits {
  size_t max_depth = 64;
  int64_t max_values = 1'000'000;  // objects, arrays and what is in them; keys are not counted
};

// Errors: kInvalidArgument with reason JSON, and the byte offset of what is no JSON.
absl::StatusOr<Json> ParseJson(std::string_view text, const JsonLimits& limits = {});

// Reads a whole file and parses it with the limits that JsonLimits has by itself. Errors: kNotFound
// when it is missing, kInvalidArgument as above or when the file is longer than max_bytes; the
// message starts with the path.
absl::StatusOr<Json> ParseJsonFile(const std::string& path, int64_t max_bytes);

}  // namespace quire

#endif  // QUIRE_COMMON_JSON_JSON_H_
