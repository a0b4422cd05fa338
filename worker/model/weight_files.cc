#include "worker/model/weight_files.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/read_file.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/json/json.h"
#include "common/model/gguf_config.h"
#include "common/model/load_error.h"
#include "common/model/model_file.h"
#include "common/model/model_path.h"
#include "worker/model/gguf_tensor_names.h"

namespace quire {
namespace {

constexpr char kSingleFile[] = "model.safetensors";
constexpr int64_t kMaxIndexBytes = int64_t{64} << 20;
// Upper bound on the tensors of all files of a directory together. The largest published models
// have a tenth as many.
constexpr size_t kMaxTensors = 1'000'000;

// Returns the path with links resolved. Errors: the file is missing, or ResolveModelFile refuses
// the path.
absl::StatusOr<std::string> Resolve(const std::string& model_dir, const std::string& name) {
  absl::StatusOr<std::string> path = ResolveModelFile(model_dir, name);
  if (!path.ok()) {
    return Error(path.status().code(),
                 ReasonOf(path.status()),
                 absl::StrCat("load: ", PrintableName(name), ": ", path.status().message()));
  }
  return path;
}

absl::StatusOr<WeightIndex> ReadIndex(const std::string& model_dir) {
  QUIRE_ASSIGN_OR_RETURN(std::string path, Resolve(model_dir, kWeightIndexFile));
  absl::StatusOr<std::string> text = ReadFile(path, kMaxIndexBytes);
  if (!text.ok()) {
    return LoadError(kWeightIndexFile, "cannot be read, or is larger than 64 MiB");
  }
  return ParseWeightIndex(*text);
}

}  // namespace

absl::StatusOr<WeightFiles> WeightFiles::Open(const std::string& model_path) {
  return IsGgufPath(model_path) ? OpenGguf(model_path) : OpenDirectory(model_path);
}

absl::StatusOr<WeightFiles> WeightFiles::OpenGguf(const std::string& path) {
  WeightFiles files;
  QUIRE_ASSIGN_OR_RETURN(files.gguf_, GgufFile::Open(path));
  files.name_ = files.gguf_->name();
  QUIRE_ASSIGN_OR_RETURN(const std::string_view architecture,
                         files.gguf_->metadata().GetString("general.architecture"));
  files.has_paired_rows_ = architecture == "llama";
  // Prevents a reallocation, which would invalidate the pointers in tensors_.
  files.gguf_tensors_.reserve(files.gguf_->tensors().size());
  for (const GgufTensor& tensor : files.gguf_->tensors()) {
    const RegularFile& part = files.gguf_->part(tensor.part);
    std::optional<std::string> name = HuggingFaceNameOf(tensor.name);
    // LoadModelConfig reads this tensor. tensors_ has it only for the model's hash.
    if (tensor.name == kGgufRopeFactors) {
      name = tensor.name;
    }
    if (!name.has_value()) {
      return TensorError(part.name(), tensor.name, "is not part of this model");
    }
    files.gguf_tensors_.push_back(
        {.name = tensor.name,
         .type_name = std::string(NameOf(tensor.type)),
         .format = WeightFormatFromNumber(static_cast<uint32_t>(tensor.type)),
         .shape = tensor.shape,
         .offset = tensor.offset,
         .bytes = tensor.bytes});
    files.tensors_.try_emplace(*std::move(name), WeightRef{&part, &files.gguf_tensors_.back()});
  }
  return files;
}

absl::StatusOr<WeightFiles> WeightFiles::OpenDirectory(const std::string& model_dir) {
  WeightFiles files;
  if (!absl::IsNotFound(ResolveModelFile(model_dir, kSingleFile).status())) {
    files.name_ = kSingleFile;
    QUIRE_RETURN_IF_ERROR(files.AddFiles(model_dir, {kSingleFile}));
    return files;
  }
  if (absl::IsNotFound(ResolveModelFile(model_dir, kWeightIndexFile).status())) {
    return Error(absl::StatusCode::kNotFound,
                 "MODEL_FILE",
                 absl::StrCat("load: ", kSingleFile, ": no such file, and no ", kWeightIndexFile));
  }
  files.name_ = kWeightIndexFile;
  QUIRE_ASSIGN_OR_RETURN(WeightIndex index, ReadIndex(model_dir));
  QUIRE_RETURN_IF_ERROR(files.AddFiles(model_dir, index.shards));
  QUIRE_RETURN_IF_ERROR(files.CheckIndex(index));
  return files;
}

absl::Status WeightFiles::AddFiles(const std::string& model_dir,
                                   const std::vector<std::string>& names) {
  // Prevents a reallocation, which would invalidate the pointers to files in tensors_.
  files_.reserve(names.size());
  for (const std::string& name : names) {
    QUIRE_ASSIGN_OR_RETURN(std::string path, Resolve(model_dir, name));
    QUIRE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path, name));
    files_.push_back(std::move(file));
    // Adds the tensors now, so that an error in this file is found before the next file is read.
    QUIRE_RETURN_IF_ERROR(AddTensors(files_.back()));
  }
  return absl::OkStatus();
}

absl::Status WeightFiles::AddTensors(const SafetensorsFile& file) {
  if (file.tensors().size() > kMaxTensors - tensors_.size()) {
    return LoadError(name_,
                     absl::StrCat("its files hold too many tensors (limit ",
                                  kMaxTensors,
                                  "): ",
                                  PrintableName(file.name()),
                                  " has ",
                                  file.tensors().size(),
                                  " more"));
  }
  for (const StoredTensor& tensor : file.tensors()) {
    auto [it, is_new] = tensors_.try_emplace(tensor.name, WeightRef{&file.file(), &tensor});
    if (!is_new) {
      return TensorError(file.name(),
                         tensor.name,
                         absl::StrCat("is also in ", PrintableName(it->second.file->name())));
    }
  }
  return absl::OkStatus();
}

absl::Status WeightFiles::CheckIndex(const WeightIndex& index) const {
  int64_t total_bytes = 0;
  for (const auto& [name, shard] : index.shard_of) {
    WeightRef weight = Find(name);
    if (weight.file == nullptr || weight.file->name() != shard) {
      return TensorError(name_, name, absl::StrCat("is not in ", PrintableName(shard)));
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

std::vector<const RegularFile*> WeightFiles::files() const {
  std::vector<const RegularFile*> files;
  for (const SafetensorsFile& file : files_) {
    files.push_back(&file.file());
  }
  for (int32_t part = 0; gguf_.has_value() && part < gguf_->num_parts(); ++part) {
    files.push_back(&gguf_->part(part));
  }
  return files;
}

std::string WeightFiles::NameInFiles(const std::string& name) const {
  return is_gguf() ? GgufNameOf(name).value_or(name) : name;
}

WeightRef WeightFiles::Find(std::string_view name) const {
  auto it = tensors_.find(name);
  return it == tensors_.end() ? WeightRef() : it->second;
}

}  // namespace quire
