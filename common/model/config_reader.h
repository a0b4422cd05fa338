// ConfigReader takes typed, range-checked values out of a JSON object. The first fault is kept and
// every later call returns its fallback, so a parser reads as a list of fields and asks status()
// once before it uses what it got.
//
// Thread safety: one caller at a time.
// Errors:        kInvalidArgument, reason CONFIG, message "<file>: <field>: <rule>".
#ifndef QUIRE_COMMON_MODEL_CONFIG_READER_H_
#define QUIRE_COMMON_MODEL_CONFIG_READER_H_

#include <cstdint>
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
  // The object must outlive the reader. `prefix` ("rope_parameters.") goes before field names.
  ConfigReader(const Json& object, std::string file, std::string prefix = "");

  // The field is there; null counts as there.
  bool Has(std::string_view field) const;
  // The field is there and null.
  bool IsNull(std::string_view field) const;
  // The value, or null when the field is missing or null.
  const Json* Find(std::string_view field) const;

  int32_t RequiredInt(std::string_view field, IntRange range);
  // Missing or null: nullopt.
  std::optional<int32_t> OptionalInt(std::string_view field, IntRange range);
  int32_t Int(std::string_view field, IntRange range, int32_t fallback);

  // Finite and in [min, max]. Missing or null: nullopt.
  std::optional<double> OptionalNumber(std::string_view field, double min, double max);
  double Number(std::string_view field, double min, double max, double fallback);

  // Missing or null: nullopt.
  std::optional<bool> OptionalBool(std::string_view field);
  bool Bool(std::string_view field, bool fallback);

  std::optional<std::string> OptionalString(std::string_view field);

  // A token id or a list of them, each in [0, limit). Missing or null: empty.
  std::vector<TokenId> TokenIds(std::string_view field, int64_t limit);

  // Keeps the first fault.
  void Fail(std::string_view field, std::string_view rule);
  const absl::Status& status() const { return status_; }

 private:
  std::optional<int32_t> CheckInt(std::string_view field, const Json& value, IntRange range);

  const Json& object_;
  std::string file_;
  std::string prefix_;
  absl::Status status_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_CONFIG_READER_H_
