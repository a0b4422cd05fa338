#include "worker/model/weight_index.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/json/json.h"
#include "common/model/load_error.h"

namespace quire {
namespace {

constexpr size_t kMaxShards = 4096;
// An index has about one JSON value per tensor.
constexpr JsonLimits kIndexLimits = {.max_depth = 8, .max_values = 1'000'000};

bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name != "." && name.find("..") == std::string::npos &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

// Some versions of transformers write total_size as an integer, others as a float.
absl::StatusOr<std::optional<int64_t>> ParseTotalSize(const Json& index) {
  auto metadata = index.find("metadata");
  if (metadata == index.end() || !metadata->is_object() || !metadata->contains("total_size")) {
    return std::optional<int64_t>();
  }
  constexpr double kLargestExact = 9007199254740992.0;  // 2^53
  const Json& value = (*metadata)["total_size"];
  const double number = value.is_number() ? value.get<double>() : -1.0;
  if (number < 0.0 || number > kLargestExact || number != std::floor(number)) {
    return LoadError(kWeightIndexFile, "metadata.total_size must be an integer in [0, 2^53]");
  }
  return std::optional<int64_t>(static_cast<int64_t>(number));
}

}  // namespace

absl::StatusOr<WeightIndex> ParseWeightIndex(const std::string& text) {
  absl::StatusOr<Json> json = ParseJson(text, kIndexLimits);
  if (!json.ok()) {
    return LoadError(kWeightIndexFile, ToStd(json.status().message()));
  }
  if (!json->is_object() || !json->contains("weight_map") || !(*json)["weight_map"].is_object() ||
      (*json)["weight_map"].empty()) {
    return LoadError(kWeightIndexFile, "weight_map must map tensor names to file names");
  }
  WeightIndex index;
  QUIRE_ASSIGN_OR_RETURN(index.total_bytes, ParseTotalSize(*json));
  for (const auto& [tensor, shard] : (*json)["weight_map"].items()) {
    if (!shard.is_string() || !IsPlainFileName(shard.get<std::string>())) {
      return TensorError(
          kWeightIndexFile, tensor, "must name a file in the model folder, without '/' and '..'");
    }
    index.shard_of[tensor] = shard.get<std::string>();
    index.shards.push_back(shard.get<std::string>());
  }
  std::sort(index.shards.begin(), index.shards.end());
  index.shards.erase(std::unique(index.shards.begin(), index.shards.end()), index.shards.end());
  if (index.shards.size() > kMaxShards) {
    return LoadError(
        kWeightIndexFile,
        absl::StrCat(
            "names too many files (got ", index.shards.size(), ", limit ", kMaxShards, ")"));
  }
  return index;
}

}  // namespace quire
