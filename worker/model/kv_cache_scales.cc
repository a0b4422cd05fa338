#include "worker/model/kv_cache_scales.h"

#include <array>
#include <cstddef>
#include <optional>
#include <span>

#include "absl/strings/str_cat.h"

#include "common/base/shortest_decimal.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/model/load_error.h"
#include "kernels/api/dequantize.h"

namespace quire {
namespace {

constexpr std::array<std::string_view, 4> kKeyNames = {
    ".k_scale", ".k_proj.k_scale", ".k_proj.output_scale", ".kv_scale"};
constexpr std::array<std::string_view, 4> kValueNames = {
    ".v_scale", ".v_proj.v_scale", ".v_proj.output_scale", ".kv_scale"};
constexpr std::string_view kQueryName = ".q_scale";

// Bounds of a valid scale. Scales of real models lie well inside these bounds, because keys and
// values themselves fit in f16.
constexpr float kLeastScale = 1e-9F;
constexpr float kMostScale = 1e9F;

absl::StatusOr<float> ReadScale(const WeightRef& weight) {
  const StoredTensor& tensor = *weight.tensor;
  auto error = [&](const std::string& rule) {
    return TensorError(weight.file->name(), tensor.name, rule);
  };
  if (!tensor.shape.empty() && tensor.shape != std::vector<int64_t>{1}) {
    return error(absl::StrCat("a scale of the KV cache must be one number (got shape ",
                              ShapeToString(tensor.shape),
                              "); a scale for each head is not supported"));
  }
  if (!tensor.format.has_value() || IsQuantized(*tensor.format)) {
    return error(absl::StrCat("has a dtype that is not supported for a scale (got ",
                              tensor.type_name,
                              ", need F32, F16 or BF16)"));
  }
  std::array<std::byte, sizeof(float)> bytes = {};
  const auto raw = std::span(bytes).first(static_cast<size_t>(tensor.bytes));
  QUIRE_RETURN_IF_ERROR(weight.Read(0, raw));
  float scale = 0.0F;
  Dequantize(*tensor.format, raw, std::span(&scale, 1));
  // Written with a negation, so that NaN is refused too.
  if (!(scale >= kLeastScale && scale <= kMostScale)) {
    return error(absl::StrCat("a scale must be in [",
                              kLeastScale,
                              ", ",
                              kMostScale,
                              "] (got ",
                              ShortestDecimal(scale),
                              ")"));
  }
  return scale;
}

// Returns the scale under the first of these names that the files contain, or nullopt if the files
// contain none of the names.
absl::StatusOr<std::optional<float>> FindScale(const LayerLayout& layer,
                                               const std::array<std::string_view, 4>& names,
                                               const WeightFiles& files) {
  for (std::string_view name : names) {
    const WeightRef weight = files.Find(absl::StrCat(layer.attention, ToAbsl(name)));
    if (weight.file != nullptr) {
      QUIRE_ASSIGN_OR_RETURN(const float scale, ReadScale(weight));
      return scale;
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> KvCacheScaleNames(const LayerLayout& layer) {
  std::vector<std::string> names = {absl::StrCat(layer.attention, ToAbsl(kQueryName))};
  for (const auto& suffixes : {kKeyNames, kValueNames}) {
    for (std::string_view suffix : suffixes) {
      names.push_back(absl::StrCat(layer.attention, ToAbsl(suffix)));
    }
  }
  return names;
}

absl::StatusOr<std::vector<KvCacheScales>> ReadKvCacheScales(const WeightLayout& layout,
                                                             const WeightFiles& files) {
  std::vector<KvCacheScales> scales;
  for (const LayerLayout& layer : layout.layers) {
    QUIRE_ASSIGN_OR_RETURN(const auto key, FindScale(layer, kKeyNames, files));
    QUIRE_ASSIGN_OR_RETURN(const auto value, FindScale(layer, kValueNames, files));
    const float either = key.value_or(value.value_or(1.0F));
    scales.push_back({.key = key.value_or(either), .value = value.value_or(either)});
  }
  return scales;
}

}  // namespace quire
