// ConfigReader takes typed, range-checked values out of a JSON object. A call that fails returns a
// fallback value, and the reader keeps the first fault. So a parser can read all its fields and
// then check status() once, before it uses the values.
//
// Thread safety: one caller at a time.
// Errors:        kInvalidArgument, reason CONFIG, message "<file>: <field>: <rule>".
#ifndef QUIRE_COMMON_MODEL_CONFIG_READER_H_
#define QUIRE_COMMON_MODEL_CONFIG_READER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

#include "common/base/ids.h"
#include "common/json/json.h"

namespace quire {

struct IntRange {
  int32_t min = 1;
  int32_t max = 1;
};

class ConfigReader {
 public:
  // Maps a field to the name that error messages show for it, such as the key in a GGUF file.
  using FieldNames = std::map<std::string, std::string, std::less<>>;

  // The object must outlive the reader. Error messages put `prefix` ("rope_parameters.") before
  // each field name, and show the names in `names` in place of the fields' own.
  ConfigReader(const Json& object,
               std::string file,
               std::string prefix = "",
               FieldNames names = {});

  // Returns true if the field is present, even if it is null.
  bool Has(std::string_view field) const;
  // Returns true if the field is present and null.
  bool IsNull(std::string_view field) const;
  // Returns the value, or nullptr if the field is missing or null.
  const Json* Find(std::string_view field) const;

  int32_t RequiredInt(std::string_view field, IntRange range);
  // Returns nullopt if the field is missing or null.
  std::optional<int32_t> OptionalInt(std::string_view field, IntRange range);
  int32_t Int(std::string_view field, IntRange range, int32_t fallback);

  // Returns a finite number in [min, max], or nullopt if the field is missing or null.
  std::optional<double> OptionalNumber(std::string_view field, double min, double max);
  double Number(std::string_view field, double min, double max, double fallback);

  // Returns nullopt if the field is missing or null.
  std::optional<bool> OptionalBool(std::string_view field);
  bool Bool(std::string_view field, bool fallback);

  std::optional<std::string> OptionalString(std::string_view field);

  // Reads a field that is a token id or a list of token ids, each in [0, limit). Returns the ids
  // without duplicates. Returns an empty list if the field is missing or null.
  std::vector<TokenId> TokenIds(std::string_view field, int64_t limit);

  // Records a fault, unless a fault is recorded already.
  void Fail(std::string_view field, std::string_view rule);
  const absl::Status& status() const { return status_; }
  // Returns the text that error messages put before field names.
  const std::string& prefix() const { return prefix_; }

 private:
  std::optional<int32_t> CheckInt(std::string_view field, const Json& value, IntRange range);

  const Json& object_;
  std::string file_;
  std::string prefix_;
  FieldNames names_;
  absl::Status status_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_CONFIG_READER_H_
