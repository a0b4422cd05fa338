// ParseJson reads JSON from untrusted files and clients: strict UTF-8, no duplicate keys, no
// trailing bytes, and limits on depth and number of values. Built on nlohmann/json, whose parser
// and destructor do not recurse.
//
// Thread safety: free functions, safe from any thread.
// Cost:          linear, except for sorting keys; stops at the first fault. Memory: each value
//                takes at most 256 bytes plus twice the size of its text. Parsing also takes a few
//                times the size of the longest string.
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
// Keeps the order of an object's keys. Looking up a key takes linear time, and adding a key to an
// object may copy all its members.
using OrderedJson = nlohmann::ordered_json;

struct JsonLimits {
  size_t max_depth = 64;
  int64_t max_values = 1'000'000;  // counts objects and arrays, but not keys
};

// Errors: kInvalidArgument, reason JSON; for a syntax error the message has the byte offset.
absl::StatusOr<Json> ParseJson(std::string_view text, const JsonLimits& limits = {});
absl::StatusOr<OrderedJson> ParseOrderedJson(std::string_view text, const JsonLimits& limits = {});

// Reads a whole file and parses its text with the default JsonLimits. Errors: kNotFound if the file
// is missing; kInvalidArgument if the file is longer than max_bytes or ParseJson fails. The message
// starts with the path.
absl::StatusOr<Json> ParseJsonFile(const std::string& path, int64_t max_bytes);

}  // namespace quire

#endif  // QUIRE_COMMON_JSON_JSON_H_
