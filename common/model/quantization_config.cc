#include "common/model/quantization_config.h"

#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/model/quantization_methods.h"

namespace quire {
namespace {

constexpr std::string_view kMethods = "compressed-tensors, awq, gptq, fp8, fbgemm_fp8";

// Unsupported values of quant_method in published directories, each with the nearest supported one.
constexpr std::array<NearestFormat, 24> kOtherMethods = {{
    {"aqlm", "gptq"},
    {"auto-round", "gptq"},
    {"bitblas", "gptq"},
    {"bitnet", "compressed-tensors pack-quantized"},
    {"bitsandbytes", "awq"},
    {"deepspeedfp", "fp8"},
    {"eetq", "compressed-tensors int-quantized"},
    {"exl2", "gptq"},
    {"experts_int8", "compressed-tensors int-quantized"},
    {"fp_quant", "compressed-tensors pack-quantized"},
    {"gguf", "a GGUF file"},
    {"higgs", "gptq"},
    {"hqq", "awq"},
    {"marlin", "gptq"},
    {"modelopt", "fp8"},
    {"mxfp4", "compressed-tensors pack-quantized"},
    {"mxfp8", "fp8"},
    {"nvfp4", "compressed-tensors pack-quantized"},
    {"qqq", "gptq"},
    {"quanto", "compressed-tensors int-quantized"},
    {"quark", "compressed-tensors float-quantized"},
    {"spqr", "gptq"},
    {"torchao", "compressed-tensors int-quantized"},
    {"vptq", "gptq"},
}};

enum class MatchKind : uint8_t { kName, kRegex, kClass };

absl::StatusOr<bool> IsMatch(const NamePattern& pattern,
                             MatchKind kind,
                             std::string_view module,
                             std::string_view class_name) {
  if (pattern.is_regex() != (kind == MatchKind::kRegex)) {
    return false;
  }
  return pattern.Matches(kind == MatchKind::kClass ? class_name : module);
}

absl::StatusOr<bool> HasMatch(const std::vector<NamePattern>& patterns,
                              MatchKind kind,
                              std::string_view module,
                              std::string_view class_name) {
  for (const NamePattern& pattern : patterns) {
    QUIRE_ASSIGN_OR_RETURN(const bool is_match, IsMatch(pattern, kind, module, class_name));
    if (is_match) {
      return true;
    }
  }
  return false;
}

void AddTo(Digest& digest, const std::vector<NamePattern>& patterns) {
  digest.AddInt(uint64_t{patterns.size()});
  for (const NamePattern& pattern : patterns) {
    digest.AddBytes(pattern.text());
  }
}

size_t CountRegexes(const QuantizationConfig& config) {
  size_t count = 0;
  const auto add = [&count](const std::vector<NamePattern>& patterns) {
    for (const NamePattern& pattern : patterns) {
      count += pattern.is_regex() ? 1 : 0;
    }
  };
  add(config.ignore);
  for (const QuantizationConfig::Group& group : config.groups) {
    add(group.targets);
  }
  return count;
}

absl::StatusOr<QuantizationConfig> ParseMethod(ConfigReader& reader) {
  const std::string method = reader.OptionalString("quant_method").value_or("");
  if (method == "compressed-tensors") {
    return ParseCompressedTensors(reader);
  }
  if (method == "awq") {
    return ParseAwq(reader);
  }
  if (method == "gptq") {
    return ParseGptq(reader);
  }
  if (method == "fp8" || method == "fbgemm_fp8") {
    return ParseFp8(reader);
  }
  reader.Fail("quant_method",
              method.empty() ? "is required" : NotSupported(method, kOtherMethods, kMethods));
  return reader.status();
}

}  // namespace

absl::StatusOr<const WeightScheme*> QuantizationConfig::SchemeFor(
    std::string_view module, std::string_view class_name) const {
  constexpr std::array kKinds = {MatchKind::kName, MatchKind::kRegex, MatchKind::kClass};
  for (const MatchKind kind : kKinds) {
    QUIRE_ASSIGN_OR_RETURN(const bool is_ignored, HasMatch(ignore, kind, module, class_name));
    if (is_ignored) {
      return nullptr;
    }
  }
  for (const MatchKind kind : kKinds) {
    for (const Group& group : groups) {
      QUIRE_ASSIGN_OR_RETURN(const bool is_target,
                             HasMatch(group.targets, kind, module, class_name));
      if (is_target) {
        return &group.scheme;
      }
    }
  }
  return nullptr;
}

absl::StatusOr<QuantizationConfig> ParseQuantizationConfig(const ConfigReader& config_json) {
  std::string field = "quantization_config";
  const Json* object = config_json.Find(field);
  if (object == nullptr) {
    field = "compression_config";
    object = config_json.Find(field);
  }
  if (object == nullptr) {
    return QuantizationConfig();
  }
  ConfigReader reader(*object, "config.json", field + ".");
  QUIRE_RETURN_IF_ERROR(reader.status());
  QUIRE_ASSIGN_OR_RETURN(QuantizationConfig config, ParseMethod(reader));
  if (CountRegexes(config) > kMaxRegexes) {
    return InvalidArgument(
        "CONFIG",
        absl::StrCat(
            "config.json: ", field, ": must have at most ", kMaxRegexes, " regular expressions"));
  }
  return config;
}

void AddTo(Digest& digest, const QuantizationConfig& config) {
  digest.AddInt(uint64_t{config.groups.size()});
  for (const QuantizationConfig::Group& group : config.groups) {
    AddTo(digest, group.targets);
    const WeightScheme& scheme = group.scheme;
    for (const auto number : {static_cast<int64_t>(scheme.storage),
                              int64_t{scheme.bits},
                              int64_t{scheme.group_rows},
                              int64_t{scheme.group_cols},
                              int64_t{scheme.is_symmetric},
                              int64_t{scheme.needs_group_index},
                              int64_t{scheme.has_zeros_less_one}}) {
      digest.AddInt(number);
    }
  }
  AddTo(digest, config.ignore);
}

}  // namespace quire
