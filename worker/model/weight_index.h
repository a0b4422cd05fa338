// ParseWeightIndex reads model.safetensors.index.json: which shard of a sharded model holds which
// tensor.
//
// Thread safety: free functions, safe from any thread.
// Errors:        see load_error.h.
#ifndef QUIRE_WORKER_MODEL_WEIGHT_INDEX_H_
#define QUIRE_WORKER_MODEL_WEIGHT_INDEX_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace quire {

inline constexpr char kWeightIndexFile[] = "model.safetensors.index.json";

struct WeightIndex {
  std::map<std::string, std::string> shard_of;  // tensor name -> file name inside the folder
  std::vector<std::string> shards;              // sorted, without repetition
  std::optional<int64_t> total_bytes;           // metadata.total_size
};

// Fails if a shard name is empty, is ".", or contains '/', ".." or a zero byte.
absl::StatusOr<WeightIndex> ParseWeightIndex(const std::string& text);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_WEIGHT_INDEX_H_
