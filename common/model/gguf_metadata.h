// GgufMetadata is the key-value part of a GGUF file. A getter checks the type and the range of a
// value, and names the key in its error.
//
// Thread safety: const methods from any thread.
// Invariants:    keys are unique. Views that getters return live as long as the metadata, also
// after
//                the metadata is moved.
// Errors:        reason MODEL_FILE, message "load: <file>: <key>: <rule>"; kNotFound if the key is
//                missing, kInvalidArgument if the value has another type, kOutOfRange if a number
//                is not in the range.
// Cost:          a getter of an array is linear in the array; another getter is a search by key.
// Source:        docs/gguf.md of the ggml project.
#ifndef QUIRE_COMMON_MODEL_GGUF_METADATA_H_
#define QUIRE_COMMON_MODEL_GGUF_METADATA_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quire {

// The values are the numbers in files.
enum class GgufValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// Returns the format's name of the type: "uint8", "string", "array".
std::string_view NameOf(GgufValueType type);

// Returns nullopt if the format has no type with this number.
std::optional<GgufValueType> GgufValueTypeFromNumber(uint32_t number);

// Returns the bytes of one value in a file; 0 for strings and arrays, whose sizes differ.
int64_t SizeOf(GgufValueType type);

// A value as it stands in the file.
struct GgufValue {
  GgufValueType type = GgufValueType::kUint8;
  GgufValueType element_type = GgufValueType::kUint8;  // equals `type` unless the value is an array
  int64_t num_elements = 1;                            // 1 unless the value is an array
  // The elements, little endian. Strings are joined without their lengths.
  std::vector<std::byte> bytes;
  std::vector<uint32_t> ends;  // of each string in `bytes`; empty unless an array of strings

  bool is_array() const { return type == GgufValueType::kArray; }
  friend bool operator==(const GgufValue&, const GgufValue&) = default;
};

class GgufMetadata {
 public:
  // `file`: name of the file in error messages.
  explicit GgufMetadata(std::string file = "") : file_(std::move(file)) {}
  GgufMetadata(GgufMetadata&&) = default;
  GgufMetadata& operator=(GgufMetadata&&) = default;

  // Returns false, and drops the value, if the key is present.
  bool Add(std::string key, GgufValue&& value);

  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  // Returns nullptr if the key is missing. For callers that accept several types.
  const GgufValue* Find(std::string_view key) const;
  const std::map<std::string, GgufValue, std::less<>>& values() const { return values_; }

  // The bytes are not checked to be UTF-8.
  absl::StatusOr<std::string_view> GetString(std::string_view key) const;
  // Accepts an integer of any width. The range is [min, max].
  absl::StatusOr<int64_t> GetInteger(std::string_view key, int64_t min, int64_t max) const;
  // Accepts float32 and float64. The range is [min, max], which never holds NaN.
  absl::StatusOr<double> GetFloat(std::string_view key, double min, double max) const;
  absl::StatusOr<bool> GetBool(std::string_view key) const;

  // Getters of arrays. An empty array must have the right element type, too.
  absl::StatusOr<std::vector<std::string_view>> GetStrings(std::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> GetIntegers(std::string_view key,
                                                   int64_t min,
                                                   int64_t max) const;
  absl::StatusOr<std::vector<double>> GetFloats(std::string_view key, double min, double max) const;
  absl::StatusOr<std::vector<bool>> GetBools(std::string_view key) const;

  // Returns an error of this file about the key, for rules that a getter does not know.
  absl::Status KeyError(std::string_view key, std::string_view rule) const;

 private:
  enum class Kind : uint8_t { kInteger, kFloat, kBool, kString };

  // Returns the value if its elements, or the value itself unless is_array, are of the kind.
  absl::StatusOr<const GgufValue*> Typed(std::string_view key, Kind kind, bool is_array) const;

  std::string file_;
  std::map<std::string, GgufValue, std::less<>> values_;
};

// Returns the fallback if the key was missing: IfMissing(metadata.GetInteger(key, 1, 9), 5). Other
// errors stay.
template <typename T>
absl::StatusOr<T> IfMissing(absl::StatusOr<T> value, std::type_identity_t<T> fallback) {
  if (absl::IsNotFound(value.status())) {
    return fallback;
  }
  return value;
}

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_GGUF_METADATA_H_
