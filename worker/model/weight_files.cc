#include "worker/model/weight_files.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/json/json.h"
#include "worker/model/load_error.h"

#include <sys/stat.h>

namespace quire {
namespace {

constexpr char kSingleFile[] = "model.safetensors";
constexpr int64_t kMaxIndexBytes = int64_t{64} << 20;

absl::Status NotFound(std::string_view file, std::string_view rule) {
  return Error(absl::StatusCode::kNotFound,
               "MODEL_FILE",
               absl::StrCat("load: ", Printable(file), ": ", ToAbsl(rule)));
}

bool Exists(const std::filesystem::path& path) {
  struct stat info = {};
  return ::lstat(path.c_str(), &info) == 0;
}

bool IsInside(const std::filesystem::path& path, const std::filesystem::path& folder) {
  auto relative = path.lexically_relative(folder);
  return !relative.empty() && *relative.begin() != ".." && *relative.begin() != ".";
}

// The path with links resolved, or why it may not be read.
absl::StatusOr<std::string> ResolveInside(const std::string& model_dir, const std::string& name) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::canonical(model_dir, error);
  if (error) {
    return NotFound(name, "the model folder cannot be opened");
  }
  const std::filesystem::path path = std::filesystem::canonical(folder / name, error);
  if (error) {
    return NotFound(name, "no such file");
  }
  bool is_hub_cache = folder.parent_path().filename() == "snapshots";
  const std::filesystem::path blobs = folder.parent_path().parent_path() / "blobs";
  if (!IsInside(path, folder) && !(is_hub_cache && IsInside(path, blobs))) {
    return LoadError(name, "is a symbolic link out of the model folder");
  }
  return path.string();
}

absl::StatusOr<WeightIndex> ReadIndex(const std::string& model_dir) {
  QUIRE_ASSIGN_OR_RETURN(std::string path, ResolveInside(model_dir, kWeightIndexFile));
  absl::StatusOr<std::string> text = ReadFile(path, kMaxIndexBytes);
  if (!text.ok()) {
    return LoadError(kWeightIndexFile, "cannot be read, or is larger than 64 MiB");
  }
  return ParseWeightIndex(*text);
}

}  // namespace

absl::StatusOr<WeightFiles> WeightFiles::Open(const std::string& model_dir) {
  const std::filesystem::path folder(model_dir);
  WeightFiles files;
  if (Exists(folder / kSingleFile)) {
    files.name_ = kSingleFile;
    QUIRE_RETURN_IF_ERROR(files.AddFiles(model_dir, {kSingleFile}));
    return files;
  }
  if (!Exists(folder / kWeightIndexFile)) {
    return NotFound(kSingleFile, "no such file, and no model.safetensors.index.json");
  }
  files.name_ = kWeightIndexFile;
  QUIRE_ASSIGN_OR_RETURN(WeightIndex index, ReadIndex(model_dir));
  QUIRE_RETURN_IF_ERROR(files.AddFiles(model_dir, index.shards));
  QUIRE_RETURN_IF_ERROR(files.CheckIndex(index));
  return files;
}

absl::Status WeightFiles::AddFiles(const std::string& model_dir,
                                   const std::vector<std::string>& names) {
  files_.reserve(names.size());  // references to files stay valid
  for (const std::string& name : names) {
    QUIRE_ASSIGN_OR_RETURN(std::string path, ResolveInside(model_dir, name));
    QUIRE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path, name));
    files_.push_back(std::move(file));
  }
  for (const SafetensorsFile& file : files_) {
    for (const SafetensorsTensor& tensor : file.tensors()) {
      auto [it, is_new] = tensors_.try_emplace(tensor.name, WeightRef{&file, &tensor});
      if (!is_new) {
        return TensorError(file.name(),
                           tensor.name,
                           absl::StrCat("is also in ", Printable(it->second.file->name())));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status WeightFiles::CheckIndex(const WeightIndex& index) const {
  int64_t total_bytes = 0;
  for (const auto& [name, shard] : index.shard_of) {
    WeightRef weight = Find(name);
    if (weight.file == nullptr || weight.file->name() != shard) {
      return TensorError(name_, name, absl::StrCat("is not in ", Printable(shard)));
    }
    total_bytes += weight.tensor->bytes;
  }
  if (index.total_bytes.has_value() && *index.total_bytes != total_bytes) {
    return LoadError(name_,
                     absl::StrCat("metadata.total_size does not match the files (got ",
                                  *index.total_bytes,
                                  ", need ",
                                  total_bytes,
                                  ")"));
  }
  return absl::OkStatus();
}

WeightRef WeightFiles::Find(std::string_view name) const {
  auto it = tensors_.find(name);
  return it == tensors_.end() ? WeightRef() : it->second;
}

}  // namespace quire
