#include "common/model/rope_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/json/json.h"

namespace quire {
namespace {

// Range of original_max_position_embeddings.
constexpr IntRange kOriginalPositionsRange = {.min = 1, .max = kMaxPositionsLimit};
// Range of factors, betas and frequency bounds: far wider than in published models.
constexpr double kLeastFactor = 1e-6;
constexpr double kMostFactor = 1e6;

// Fields of config.json outside the RoPE object, on which the RoPE parameters depend.
struct RopeModel {
  int32_t positions = 0;  // max_position_embeddings
  int32_t head_dim = 0;
  // original_max_position_embeddings outside the RoPE object. It overrides the field inside.
  std::optional<int32_t> original_positions;
};

struct RopeType {
  std::string_view name;
  RopeScalingKind kind;
};

// "mrope" gives each token three positions. For text all three are equal, so it is plain RoPE.
constexpr std::array<RopeType, 8> kRopeTypes = {{{"default", RopeScalingKind::kNone},
                                                 {"dynamic", RopeScalingKind::kDynamic},
                                                 {"linear", RopeScalingKind::kLinear},
                                                 {"llama3", RopeScalingKind::kLlama3},
                                                 {"longrope", RopeScalingKind::kLongRope},
                                                 {"mrope", RopeScalingKind::kNone},
                                                 {"proportional", RopeScalingKind::kProportional},
                                                 {"yarn", RopeScalingKind::kYarn}}};

RopeScalingKind ParseRopeType(ConfigReader& reader) {
  std::optional<std::string> name = reader.OptionalString("rope_type");
  if (!name.has_value()) {
    name = reader.OptionalString("type");
  }
  if (!name.has_value()) {
    return RopeScalingKind::kNone;
  }
  std::string names;
  for (const RopeType& type : kRopeTypes) {
    if (*name == type.name) {
      return type.kind;
    }
    absl::StrAppend(&names, names.empty() ? "" : ", ", ToAbsl(type.name));
  }
  reader.Fail(
      "rope_type",
      absl::StrCat("must be one of ", names, " (got ", Printable(*name, /*max_bytes=*/32), ")"));
  return RopeScalingKind::kNone;
}

double RequiredNumber(ConfigReader& reader, std::string_view field, double min, double max) {
  std::optional<double> value = reader.OptionalNumber(field, min, max);
  if (!value.has_value()) {
    reader.Fail(field, "is required");
  }
  return value.value_or(min);
}

// Reads a list of `size` divisors of frequencies.
std::vector<float> RequiredFactors(ConfigReader& reader, std::string_view field, int32_t size) {
  const Json* const list = reader.Find(field);
  if (list == nullptr || !list->is_array() || list->size() != static_cast<size_t>(size)) {
    reader.Fail(field, absl::StrCat("must be a list of head_dim / 2 = ", size, " numbers"));
    return {};
  }
  std::vector<float> factors;
  for (const Json& entry : *list) {
    const double factor = entry.is_number() ? entry.get<double>() : 0.0;
    if (!(factor >= kLeastFactor && factor <= kMostFactor)) {
      reader.Fail(field,
                  absl::StrCat("entries must be in [", kLeastFactor, ", ", kMostFactor, "]"));
      return {};
    }
    factors.push_back(static_cast<float>(factor));
  }
  return factors;
}

// Returns the field `factor`. If it is missing, returns model.positions / original, at least 1.
double FactorOrRatio(ConfigReader& reader, const RopeModel& model, int32_t original) {
  return reader.Number("factor", 1.0, kMostFactor, std::max(1.0, 1.0 * model.positions / original));
}

void ParseLlama3(ConfigReader& reader, RopeConfig& rope) {
  rope.factor = RequiredNumber(reader, "factor", 1.0, kMostFactor);
  rope.low_freq_factor = RequiredNumber(reader, "low_freq_factor", kLeastFactor, kMostFactor);
  rope.high_freq_factor = RequiredNumber(reader, "high_freq_factor", kLeastFactor, kMostFactor);
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    reader.Fail("high_freq_factor", "must be greater than low_freq_factor");
  }
}

void ParseDynamic(ConfigReader& reader, const RopeModel& model, RopeConfig& rope) {
  rope.factor = RequiredNumber(reader, "factor", 1.0, kMostFactor);
  rope.original_max_position_embeddings = model.positions;
  if (model.head_dim <= 2) {
    reader.Fail("rope_type", "dynamic needs a head_dim above 2");
  }
}

void ParseYarn(ConfigReader& reader, const RopeModel& model, RopeConfig& rope) {
  rope.factor = FactorOrRatio(reader, model, rope.original_max_position_embeddings);
  rope.beta_fast = reader.Number("beta_fast", kLeastFactor, kMostFactor, rope.beta_fast);
  rope.beta_slow = reader.Number("beta_slow", kLeastFactor, kMostFactor, rope.beta_slow);
  rope.truncate = reader.Bool("truncate", rope.truncate);
  if (rope.beta_fast < rope.beta_slow) {
    reader.Fail("beta_fast", "must be at least beta_slow");
  }
  if (rope.theta <= 1.0) {
    reader.Fail("rope_theta", "must be greater than 1 for yarn");
  }
  const double mscale = reader.Number("mscale", 0.0, kMostFactor, 0.0);
  const double mscale_all_dim = reader.Number("mscale_all_dim", 0.0, kMostFactor, 0.0);
  const double log = 0.1 * std::log(rope.factor);
  const double by_length = mscale > 0.0 && mscale_all_dim > 0.0
                               ? (mscale * log + 1.0) / (mscale_all_dim * log + 1.0)
                               : log + 1.0;
  rope.attention_factor =
      static_cast<float>(reader.Number("attention_factor", kLeastFactor, kMostFactor, by_length));
}

void ParseLongRope(ConfigReader& reader, const RopeModel& model, RopeConfig& rope) {
  const int32_t original = rope.original_max_position_embeddings;
  if (original < 2) {
    reader.Fail("original_max_position_embeddings", "must be at least 2 for longrope");
    return;
  }
  rope.factors = RequiredFactors(reader, "short_factor", model.head_dim / 2);
  rope.long_factors = RequiredFactors(reader, "long_factor", model.head_dim / 2);
  const double ratio = FactorOrRatio(reader, model, original);
  rope.attention_factor =
      static_cast<float>(reader.Number("attention_factor",
                                       kLeastFactor,
                                       kMostFactor,
                                       std::sqrt(1.0 + std::log(ratio) / std::log(original))));
}

void ParseProportional(ConfigReader& reader, RopeConfig& rope) {
  rope.factor = reader.Number("factor", 1.0, kMostFactor, rope.factor);
  rope.rotated_share = reader.Number("partial_rotary_factor", 0.0, 1.0, rope.rotated_share);
}

// Parses the RoPE object, which is the value of rope_scaling or rope_parameters.
absl::Status ParseRopeObject(ConfigReader& reader, const RopeModel& model, RopeConfig& rope) {
  rope.theta = reader.Number("rope_theta", 1.0, 1e12, rope.theta);
  rope.scaling = ParseRopeType(reader);
  if (rope.scaling != RopeScalingKind::kProportional &&
      reader.Number("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0) {
    reader.Fail("partial_rotary_factor", "must be 1");
  }
  const int32_t original = model.original_positions.value_or(
      reader.Int("original_max_position_embeddings", kOriginalPositionsRange, model.positions));
  switch (rope.scaling) {
    case RopeScalingKind::kNone:
    case RopeScalingKind::kFactors:
      break;
    case RopeScalingKind::kLinear:
      rope.factor = RequiredNumber(reader, "factor", 1.0, kMostFactor);
      break;
    case RopeScalingKind::kLlama3:
      rope.original_max_position_embeddings = original;
      ParseLlama3(reader, rope);
      break;
    case RopeScalingKind::kDynamic:
      ParseDynamic(reader, model, rope);
      break;
    case RopeScalingKind::kYarn:
      rope.original_max_position_embeddings = original;
      ParseYarn(reader, model, rope);
      break;
    case RopeScalingKind::kLongRope:
      rope.original_max_position_embeddings = original;
      ParseLongRope(reader, model, rope);
      break;
    case RopeScalingKind::kProportional:
      ParseProportional(reader, rope);
      break;
  }
  return reader.status();
}

// Some files have RoPE parameters for each layer type. Returns the name of the first layer type,
// whose parameters are used for all layers. Returns "" if `object` holds the parameters itself.
// Refuses layer types with different parameters.
std::string LayerTypeOf(ConfigReader& reader, std::string_view field, const Json& object) {
  std::string type;
  for (const auto& [key, value] : object.items()) {
    if (value.is_object() && type.empty()) {
      type = key;
    }
  }
  for (const auto& [key, value] : object.items()) {
    if (!type.empty() && value != object[type]) {
      reader.Fail(absl::StrCat(ToAbsl(field), ".", Printable(key, /*max_bytes=*/64)),
                  "rope parameters that differ by layer type are not supported");
    }
  }
  return type;
}

}  // namespace

absl::StatusOr<RopeConfig> ParseRope(ConfigReader& reader, int32_t positions, int32_t head_dim) {
  RopeConfig rope;
  rope.theta = reader.Number("rope_theta", 1.0, 1e12, rope.theta);
  rope.rotated_share = reader.Number("partial_rotary_factor", 0.0, 1.0, 1.0);
  const RopeModel model = {.positions = positions,
                           .head_dim = head_dim,
                           .original_positions = reader.OptionalInt(
                               "original_max_position_embeddings", kOriginalPositionsRange)};
  for (std::string_view field : {"rope_scaling", "rope_parameters"}) {
    const Json* object = reader.Find(field);
    if (object == nullptr || object->empty()) {
      continue;
    }
    if (!object->is_object()) {
      reader.Fail(field, "must be an object or null");
      return reader.status();
    }
    std::string prefix = absl::StrCat(reader.prefix(), ToAbsl(field), ".");
    if (const std::string type = LayerTypeOf(reader, field, *object); !type.empty()) {
      object = &(*object)[type];
      absl::StrAppend(&prefix, Printable(type, /*max_bytes=*/64), ".");
    }
    QUIRE_RETURN_IF_ERROR(reader.status());
    ConfigReader rope_reader(*object, "config.json", prefix);
    QUIRE_RETURN_IF_ERROR(ParseRopeObject(rope_reader, model, rope));
    break;
  }
  if (rope.scaling != RopeScalingKind::kProportional && rope.rotated_share != 1.0) {
    reader.Fail("partial_rotary_factor", "must be 1");
  }
  QUIRE_RETURN_IF_ERROR(reader.status());
  return rope;
}

int32_t ServablePositions(const RopeConfig& rope, int32_t positions) {
  if (rope.scaling != RopeScalingKind::kDynamic && rope.scaling != RopeScalingKind::kYarn) {
    return positions;
  }
  const double scaled = std::floor(rope.original_max_position_embeddings * rope.factor);
  return std::max(positions, static_cast<int32_t>(std::min(scaled, double{kMaxPositionsLimit})));
}

int32_t RopeLength(const std::optional<RopeConfig>& rope, int32_t max_context_tokens) {
  if (!rope.has_value()) {
    return 0;
  }
  const int32_t original = rope->original_max_position_embeddings;
  switch (rope->scaling) {
    case RopeScalingKind::kDynamic:
      return std::max(max_context_tokens, original);
    case RopeScalingKind::kLongRope:
      return max_context_tokens > original ? original + 1 : original;
    default:
      return 0;
  }
}

}  // namespace quire
