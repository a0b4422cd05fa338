// WeightFiles is the set of safetensors files of a model directory: model.safetensors, or the
// shards that model.safetensors.index.json names. A tensor is found by its name, in any of the
// files.
//
// A file must lie in the model folder. Symbolic links out of the folder are refused, except the
// links of a Hugging Face hub cache from .../snapshots/<revision>/ to .../blobs/.
//
// Thread safety: reading is const and safe from any thread.
// Errors:        see load_error.h; kNotFound if a file is missing.
#ifndef QUIRE_WORKER_MODEL_WEIGHT_FILES_H_
#define QUIRE_WORKER_MODEL_WEIGHT_FILES_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "worker/model/safetensors_file.h"
#include "worker/model/weight_index.h"

namespace quire {

struct WeightRef {
  const SafetensorsFile* file = nullptr;
  const SafetensorsTensor* tensor = nullptr;
};

class WeightFiles {
 public:
  static absl::StatusOr<WeightFiles> Open(const std::string& model_dir);

  // Every tensor of every file, by name.
  const std::map<std::string, WeightRef, std::less<>>& tensors() const { return tensors_; }
  // Returns null pointers if there is no such tensor.
  WeightRef Find(std::string_view name) const;

  const std::vector<SafetensorsFile>& files() const { return files_; }
  // Name of the single file or of the index, for error messages.
  const std::string& name() const { return name_; }

 private:
  absl::Status AddFiles(const std::string& model_dir, const std::vector<std::string>& names);
  absl::Status AddTensors(const SafetensorsFile& file);
  absl::Status CheckIndex(const WeightIndex& index) const;

  std::string name_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, WeightRef, std::less<>> tensors_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_WEIGHT_FILES_H_
