#include "common/model/quantization_methods.h"

#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/model/load_error.h"

namespace quire {
namespace {

constexpr size_t kMaxNames = 20'000;  // names in a list; published lists have some hundred
constexpr IntRange kGroupSizeRange = {.min = 1, .max = 1 << 20};

// Returns a config that gives all modules one scheme. Lists of modules that are not quantized are
// only checked for their form: the loader sees from the files which weights are not quantized.
QuantizationConfig ForEveryModule(const WeightScheme& scheme) {
  return {.groups = {{.targets = {*NamePattern::Parse("re:")}, .scheme = scheme}}};
}

// Reads the bits under the older name if the config has it, else under `field`, which is required.
int32_t BitsOf(ConfigReader& reader, std::string_view field, std::string_view older) {
  return reader.RequiredInt(reader.Has(older) ? older : field, {.min = 1, .max = 64});
}

// Overrides bits and group_size by a rule of `dynamic`. Ignores desc_act and sym; refuses any other
// key.
absl::Status OverrideScheme(const Json& object, const std::string& prefix, WeightScheme& scheme) {
  ConfigReader rule(object, "config.json", prefix);
  QUIRE_RETURN_IF_ERROR(rule.status());
  for (const auto& [key, value] : object.items()) {
    if (key != "bits" && key != "group_size" && key != "desc_act" && key != "sym") {
      rule.Fail(PrintableName(key), "is not supported (must be one of bits, group_size)");
    }
  }
  scheme.bits = rule.Int("bits", {.min = 1, .max = 64}, scheme.bits);
  if (scheme.bits != 4 && scheme.bits != 8) {
    rule.Fail("bits", absl::StrCat("must be 4 or 8 (got ", scheme.bits, ")"));
  }
  if (rule.Has("group_size")) {
    scheme.group_cols = GroupCols(rule, "group_size");
  }
  return rule.status();
}

// Adds the rules of GPTQModel's `dynamic`. "-:REGEX" means that matching modules are not quantized.
// "+:REGEX" or REGEX changes the scheme of matching modules.
absl::Status ReadDynamic(ConfigReader& reader, QuantizationConfig& config) {
  const Json* dynamic = reader.Find("dynamic");
  if (dynamic == nullptr) {
    return absl::OkStatus();
  }
  if (!dynamic->is_object() || dynamic->size() > kMaxRegexes) {
    reader.Fail("dynamic", absl::StrCat("must be an object of at most ", kMaxRegexes, " rules"));
    return reader.status();
  }
  const WeightScheme scheme = config.groups.front().scheme;
  for (const auto& [key, fields] : dynamic->items()) {
    const bool is_ignored = key.starts_with("-:");
    absl::StatusOr<NamePattern> pattern = NamePattern::Parse(
        absl::StrCat("re:", is_ignored || key.starts_with("+:") ? key.substr(2) : key));
    if (!pattern.ok()) {
      reader.Fail("dynamic", ToStd(pattern.status().message()));
      return reader.status();
    }
    if (is_ignored) {
      config.ignore.push_back(*std::move(pattern));
      continue;
    }
    QuantizationConfig::Group group = {.targets = {*std::move(pattern)}, .scheme = scheme};
    QUIRE_RETURN_IF_ERROR(
        OverrideScheme(fields,
                       absl::StrCat("quantization_config.dynamic.", PrintableName(key), "."),
                       group.scheme));
    config.groups.insert(config.groups.end() - 1, std::move(group));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<QuantizationConfig> ParseAwq(ConfigReader& reader) {
  WeightScheme scheme = {.storage = WeightStorage::kAwq, .is_symmetric = false};
  scheme.bits = BitsOf(reader, "bits", "w_bit");
  if (scheme.bits != 4) {
    reader.Fail(reader.Has("w_bit") ? "w_bit" : "bits",
                absl::StrCat("must be 4 (got ", scheme.bits, ")"));
  }
  scheme.group_cols = GroupCols(reader, reader.Has("group_size") ? "group_size" : "q_group_size");
  RequireText(reader, "version", "gemm");
  RequireText(reader, "format", "gemm");
  if (!reader.Bool("zero_point", true)) {
    reader.Fail("zero_point", "must be true");
  }
  NamePatterns(reader, "modules_to_not_convert");
  QUIRE_RETURN_IF_ERROR(reader.status());
  return ForEveryModule(scheme);
}

absl::StatusOr<QuantizationConfig> ParseGptq(ConfigReader& reader) {
  WeightScheme scheme = {.storage = WeightStorage::kGptq, .is_symmetric = false};
  scheme.bits = reader.RequiredInt("bits", {.min = 1, .max = 64});
  if (scheme.bits != 4 && scheme.bits != 8) {
    reader.Fail("bits", absl::StrCat("must be 4 or 8 (got ", scheme.bits, ")"));
  }
  scheme.group_cols = GroupCols(reader, "group_size");
  // Without act-order (desc_act), groups are consecutive columns, and a file may lack the tensor
  // g_idx, which holds the group of each column.
  scheme.needs_group_index = reader.Bool("desc_act", false);
  reader.Bool("sym", true);
  const std::string_view field = reader.Has("checkpoint_format") ? "checkpoint_format" : "format";
  const std::string format = reader.OptionalString(field).value_or("gptq");
  if (format != "gptq" && format != "gptq_v2" && !format.empty()) {
    reader.Fail(field,
                absl::StrCat(PrintableName(format),
                             " is not supported; the nearest supported format is gptq"));
  }
  scheme.has_zeros_less_one = format != "gptq_v2";
  if (reader.Bool("is_marlin_format", false)) {
    reader.Fail("is_marlin_format",
                "marlin is not supported; the nearest supported format is gptq");
  }
  RequireText(reader, "pack_dtype", "int32");
  QUIRE_RETURN_IF_ERROR(reader.status());
  QuantizationConfig config = ForEveryModule(scheme);
  QUIRE_RETURN_IF_ERROR(ReadDynamic(reader, config));
  return config;
}

absl::StatusOr<QuantizationConfig> ParseFp8(ConfigReader& reader) {
  WeightScheme scheme = {.storage = WeightStorage::kFloat8};
  RequireText(reader, "fmt", "e4m3");
  RequireText(reader, "scale_fmt", "float");
  if (reader.Find("weight_block_size") != nullptr) {
    ReadBlock(reader, "weight_block_size", scheme);
  }
  NamePatterns(reader, "modules_to_not_convert");
  NamePatterns(reader, "ignored_layers");
  QUIRE_RETURN_IF_ERROR(reader.status());
  return ForEveryModule(scheme);
}

std::string NotSupported(std::string_view name,
                         std::span<const NearestFormat> others,
                         std::string_view supported) {
  const std::string shown = PrintableName(name);
  for (const NearestFormat& other : others) {
    if (other.name == name) {
      return absl::StrCat(
          shown, " is not supported; the nearest supported format is ", ToAbsl(other.nearest));
    }
  }
  return absl::StrCat(shown, " is not supported (must be one of ", ToAbsl(supported), ")");
}

std::vector<NamePattern> NamePatterns(ConfigReader& reader, std::string_view field) {
  std::vector<NamePattern> patterns;
  const Json* list = reader.Find(field);
  if (list == nullptr) {
    return patterns;
  }
  if (!list->is_array() || list->size() > kMaxNames) {
    reader.Fail(field, absl::StrCat("must be a list of at most ", kMaxNames, " strings"));
    return patterns;
  }
  size_t num_regexes = 0;
  for (const Json& entry : *list) {
    if (!entry.is_string()) {
      reader.Fail(field, "must be a list of strings");
      return patterns;
    }
    absl::StatusOr<NamePattern> pattern = NamePattern::Parse(entry.get<std::string>());
    if (!pattern.ok()) {
      reader.Fail(field, ToStd(pattern.status().message()));
      return patterns;
    }
    num_regexes += pattern->is_regex() ? 1 : 0;
    if (num_regexes > kMaxRegexes) {
      reader.Fail(field, absl::StrCat("must have at most ", kMaxRegexes, " regular expressions"));
      return patterns;
    }
    patterns.push_back(*std::move(pattern));
  }
  return patterns;
}

int32_t GroupCols(ConfigReader& reader, std::string_view field) {
  const Json* value = reader.Find(field);
  if (value == nullptr || *value == -1) {
    return 0;
  }
  return reader.RequiredInt(field, kGroupSizeRange);
}

void ReadBlock(ConfigReader& reader, std::string_view field, WeightScheme& scheme) {
  const Json* block = reader.Find(field);
  auto is_size = [](const Json& value) {
    return value.is_number_integer() && value >= kGroupSizeRange.min &&
           value <= kGroupSizeRange.max;
  };
  if (block == nullptr || !block->is_array() || block->size() != 2 || !is_size((*block)[0]) ||
      !is_size((*block)[1])) {
    reader.Fail(field,
                absl::StrCat("must be a list of two sizes in [1, ", kGroupSizeRange.max, "]"));
    return;
  }
  scheme.group_rows = (*block)[0].get<int32_t>();
  scheme.group_cols = (*block)[1].get<int32_t>();
}

void RequireText(ConfigReader& reader, std::string_view field, std::string_view only) {
  const std::optional<std::string> value = reader.OptionalString(field);
  if (value.has_value() && absl::AsciiStrToLower(*value) != ToAbsl(only)) {
    reader.Fail(
        field,
        absl::StrCat(PrintableName(*value), " is not supported (must be ", ToAbsl(only), ")"));
  }
}

}  // namespace quire
