// WeightFiles is the set of files with a model's weights: model.safetensors of a model directory,
// the shards that model.safetensors.index.json names, or a GGUF file and its other parts. Tensors
// of all files are found by Hugging Face name.
//
// Files of a directory must lie in the directory. Symbolic links out of it are refused, except the
// links of a Hugging Face hub cache from .../snapshots/<revision>/ to .../blobs/.
//
// Thread safety: reading is const and safe from any thread.
// Errors:        see load_error.h; kNotFound if a file is missing.
#ifndef QUIRE_WORKER_MODEL_WEIGHT_FILES_H_
#define QUIRE_WORKER_MODEL_WEIGHT_FILES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/model/gguf_file.h"
#include "common/model/regular_file.h"
#include "worker/model/safetensors_file.h"
#include "worker/model/stored_tensor.h"
#include "worker/model/weight_index.h"

namespace quire {

class WeightFiles {
 public:
  // `model_path`: a directory or a GGUF file.
  static absl::StatusOr<WeightFiles> Open(const std::string& model_path);

  // Every tensor of every file, by Hugging Face name.
  const std::map<std::string, WeightRef, std::less<>>& tensors() const { return tensors_; }
  // Returns null pointers if there is no such tensor.
  WeightRef Find(std::string_view name) const;

  std::vector<const RegularFile*> files() const;
  // Name for error messages: of the single file, of the index, or of the first part.
  const std::string& name() const { return name_; }
  // Returns the name in the files of the tensor with this Hugging Face name.
  std::string NameInFiles(const std::string& name) const;

  bool is_gguf() const { return gguf_.has_value(); }
  // Whether the rows of q and k are stored in pairs (LinearPart::paired_head_rows).
  bool has_paired_rows() const { return has_paired_rows_; }

 private:
  static absl::StatusOr<WeightFiles> OpenDirectory(const std::string& model_dir);
  static absl::StatusOr<WeightFiles> OpenGguf(const std::string& path);
  absl::Status AddFiles(const std::string& model_dir, const std::vector<std::string>& names);
  absl::Status AddTensors(const SafetensorsFile& file);
  absl::Status CheckIndex(const WeightIndex& index) const;

  std::string name_;
  std::vector<SafetensorsFile> files_;
  std::optional<GgufFile> gguf_;
  std::vector<StoredTensor> gguf_tensors_;
  bool has_paired_rows_ = false;
  std::map<std::string, WeightRef, std::less<>> tensors_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_WEIGHT_FILES_H_
