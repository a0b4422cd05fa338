// Reads quantization_config of a model whose quant_method is compressed-tensors.
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/model/load_error.h"
#include "common/model/quantization_methods.h"

namespace quire {
namespace {

constexpr size_t kMaxConfigGroups = 64;  // published directories have at most four

constexpr std::string_view kFormats =
    "pack-quantized, int-quantized, float-quantized, naive-quantized";
// Unsupported formats of compressed-tensors, each with the nearest supported format.
constexpr std::array<NearestFormat, 7> kOtherFormats = {{
    {"marlin-24", "pack-quantized"},
    {"mxfp4-pack-quantized", "pack-quantized"},
    {"mxfp6-pack-quantized", "pack-quantized"},
    {"mxfp8-quantized", "float-quantized"},
    {"nvfp4-pack-quantized", "pack-quantized"},
    {"sparse-24-bitmask", "pack-quantized"},
    {"sparse-bitmask", "pack-quantized"},
}};

bool IsEmpty(const Json* value) {
  return value == nullptr || ((value->is_object() || value->is_array()) && value->empty());
}

// Accepts only scales that an fp8 KV cache of this server can use: one static scale per tensor.
void CheckKvCacheScheme(ConfigReader& reader) {
  constexpr std::string_view kField = "kv_cache_scheme";
  const Json* scheme = reader.Find(kField);
  if (scheme == nullptr) {
    return;
  }
  auto is = [&](const char* name, const Json& value, bool may_be_missing) {
    const Json given = scheme->is_object() && scheme->contains(name) ? (*scheme)[name] : Json();
    return given == value || (may_be_missing && given.is_null());
  };
  if (!is("num_bits", 8, false) || !is("type", "float", false) ||
      !is("strategy", "tensor", false) || !is("dynamic", false, true) ||
      !is("symmetric", true, true)) {
    reader.Fail(kField, "must be a static, symmetric scale for each tensor of 8-bit floats");
  }
}

// Returns nullopt for "dense", which has no quantized matrices, and for an unsupported format.
std::optional<WeightStorage> StorageOf(ConfigReader& reader,
                                       const std::string& format,
                                       bool is_float) {
  if (format == "dense") {
    return std::nullopt;
  }
  if (format == "pack-quantized") {
    return WeightStorage::kPacked;
  }
  if (format == "int-quantized" || (format == "naive-quantized" && !is_float)) {
    return WeightStorage::kInt8;
  }
  if (format == "float-quantized" || format == "naive-quantized") {
    return WeightStorage::kFloat8;
  }
  reader.Fail("format", NotSupported(format, kOtherFormats, kFormats));
  return std::nullopt;
}

// Sets the rows and columns that share a scale.
void ReadStrategy(ConfigReader& weights, WeightScheme& scheme) {
  const int32_t group_cols = GroupCols(weights, "group_size");
  const std::string implied = group_cols > 0 ? "group" : "channel";
  const std::string strategy =
      absl::AsciiStrToLower(weights.OptionalString("strategy").value_or(implied));
  if (strategy == "group" && group_cols > 0) {
    scheme.group_cols = group_cols;
  } else if (strategy == "group") {
    weights.Fail("group_size", "must be positive with strategy group");
  } else if (strategy == "block") {
    ReadBlock(weights, "block_structure", scheme);
  } else if (strategy != "tensor" && strategy != "channel") {
    weights.Fail("strategy",
                 absl::StrCat(PrintableName(strategy),
                              " is not supported (must be one of tensor, channel, group, block)"));
  }
}

void ReadActOrder(ConfigReader& weights, WeightScheme& scheme) {
  const Json* order = weights.Find("actorder");
  if (order == nullptr || *order == false || *order == "weight" || *order == "static") {
    return;
  }
  if (*order == true || *order == "group" || *order == "dynamic") {
    scheme.needs_group_index = true;
    return;
  }
  weights.Fail("actorder", "must be one of group, dynamic, weight, static, true, false");
}

void ReadBits(ConfigReader& weights, WeightScheme& scheme) {
  scheme.bits = weights.Int("num_bits", {.min = 1, .max = 64}, 8);
  const bool may_be_4 = scheme.storage == WeightStorage::kPacked;
  if (scheme.bits != 8 && !(may_be_4 && scheme.bits == 4)) {
    weights.Fail("num_bits",
                 absl::StrCat("must be ", may_be_4 ? "4 or 8" : "8", " (got ", scheme.bits, ")"));
  }
}

// Reads the object `weights` of an entry of config_groups.
absl::StatusOr<WeightScheme> ParseWeights(ConfigReader& weights,
                                          WeightStorage storage,
                                          bool is_float) {
  WeightScheme scheme = {.storage = storage};
  ReadBits(weights, scheme);
  if (is_float != (storage == WeightStorage::kFloat8)) {
    weights.Fail("type",
                 is_float ? "must be int with this format" : "must be float with this format");
  }
  if (const Json* dynamic = weights.Find("dynamic"); dynamic != nullptr && *dynamic != false) {
    weights.Fail("dynamic", "must be false");
  }
  scheme.is_symmetric = weights.Bool("symmetric", true);
  if (is_float && !scheme.is_symmetric) {
    weights.Fail("symmetric", "must be true for floats");
  }
  ReadStrategy(weights, scheme);
  ReadActOrder(weights, scheme);
  QUIRE_RETURN_IF_ERROR(weights.status());
  return scheme;
}

// Reads an entry of config_groups. Adds the group to `config` if its weights are quantized.
absl::Status ParseGroup(const Json& object,
                        const std::string& prefix,
                        const std::string& default_format,
                        QuantizationConfig& config) {
  ConfigReader reader(object, "config.json", prefix);
  QUIRE_RETURN_IF_ERROR(reader.status());
  QuantizationConfig::Group group;
  group.targets = NamePatterns(reader, "targets");
  const Json* weights_object = reader.Find("weights");
  if (weights_object == nullptr) {
    return reader.status();
  }
  ConfigReader weights(*weights_object, "config.json", prefix + "weights.");
  const std::string type = absl::AsciiStrToLower(weights.OptionalString("type").value_or("int"));
  if (type != "int" && type != "float") {
    weights.Fail("type", "must be one of int, float");
  }
  QUIRE_RETURN_IF_ERROR(weights.status());
  const std::string format = reader.OptionalString("format").value_or(default_format);
  const std::optional<WeightStorage> storage = StorageOf(reader, format, type == "float");
  QUIRE_RETURN_IF_ERROR(reader.status());
  if (storage.has_value()) {
    QUIRE_ASSIGN_OR_RETURN(group.scheme, ParseWeights(weights, *storage, type == "float"));
    config.groups.push_back(std::move(group));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<QuantizationConfig> ParseCompressedTensors(ConfigReader& reader) {
  for (const std::string_view field : {"transform_config", "moe_sparsity_config"}) {
    if (!IsEmpty(reader.Find(field))) {
      reader.Fail(field, "is not supported");
    }
  }
  if (const Json* sparsity = reader.Find("sparsity_config"); !IsEmpty(sparsity)) {
    ConfigReader fields(*sparsity, "config.json", "quantization_config.sparsity_config.");
    const std::string format = fields.OptionalString("format").value_or("");
    if (format != "dense") {
      fields.Fail("format", NotSupported(format, kOtherFormats, "dense"));
    }
    QUIRE_RETURN_IF_ERROR(fields.status());
  }
  CheckKvCacheScheme(reader);
  const Json* groups = reader.Find("config_groups");
  QuantizationConfig config;
  config.ignore = NamePatterns(reader, "ignore");
  const std::string format = reader.OptionalString("format").value_or("dense");
  QUIRE_RETURN_IF_ERROR(reader.status());
  if (IsEmpty(groups)) {
    return QuantizationConfig();
  }
  if (!groups->is_object() || groups->size() > kMaxConfigGroups) {
    reader.Fail("config_groups",
                absl::StrCat("must be an object of at most ", kMaxConfigGroups, " groups"));
    return reader.status();
  }
  for (const auto& [name, group] : groups->items()) {
    QUIRE_RETURN_IF_ERROR(
        ParseGroup(group,
                   absl::StrCat("quantization_config.config_groups.", PrintableName(name), "."),
                   format,
                   config));
  }
  return config;
}

}  // namespace quire
