#include "common/model/gguf_file.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/model/gguf_split_name.h"
#include "common/model/load_error.h"
#include "common/model/model_file.h"

namespace quire {
namespace {

constexpr std::string_view kSplitNoKey = "split.no";
constexpr std::string_view kSplitCountKey = "split.count";
constexpr std::string_view kSplitTensorsKey = "split.tensors.count";

// Returns 1 for a file that is not split. Tools that join parts write split.count = 0.
absl::StatusOr<int32_t> NumPartsOf(const GgufMetadata& metadata) {
  QUIRE_ASSIGN_OR_RETURN(const int64_t count,
                         IfMissing(metadata.GetInteger(kSplitCountKey, 0, kMaxGgufParts), 1));
  return static_cast<int32_t>(std::max<int64_t>(count, 1));
}

absl::Status CheckSplitKey(const GgufMetadata& metadata, std::string_view key, int64_t expected) {
  if (!metadata.Has(key)) {
    return metadata.KeyError(key, "is missing, but the model is split");
  }
  QUIRE_ASSIGN_OR_RETURN(const int64_t number, metadata.GetInteger(key, 0, INT32_MAX));
  if (number != expected) {
    return metadata.KeyError(key, absl::StrCat("must be ", expected, " (got ", number, ")"));
  }
  return absl::OkStatus();
}

// Compares the name of the first part, or of a file that is not split, with its split.count.
absl::Status CheckName(const std::string& name, int32_t num_parts) {
  const std::optional<GgufSplitName> split = ParseGgufSplitName(name);
  const int32_t named_parts = split.has_value() ? split->num_parts : 1;
  if (named_parts != num_parts) {
    return LoadError(name,
                     absl::StrCat("the name says ",
                                  named_parts,
                                  named_parts == 1 ? " part, " : " parts, ",
                                  ToAbsl(kSplitCountKey),
                                  " says ",
                                  num_parts));
  }
  if (split.has_value() && split->number != 1) {
    return LoadError(
        name,
        absl::StrCat(
            "is part ", split->number, "; give the first one, ", PrintableName(split->OfPart(1))));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GgufFile> GgufFile::Open(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  QUIRE_ASSIGN_OR_RETURN(RegularFile file, RegularFile::Open(path, name));
  GgufFile model;
  QUIRE_RETURN_IF_ERROR(model.AddPart(std::move(file)));
  QUIRE_RETURN_IF_ERROR(model.OpenOtherParts(path));
  QUIRE_RETURN_IF_ERROR(model.IndexNames());
  return model;
}

absl::Status GgufFile::AddPart(RegularFile file) {
  QUIRE_ASSIGN_OR_RETURN(GgufHeader header,
                         ReadGgufHeader(file, kMaxGgufHeaderBytes - header_bytes_));
  if (parts_.empty()) {
    metadata_ = std::move(header.metadata);
  } else {
    QUIRE_RETURN_IF_ERROR(CheckKeys(header.metadata));
  }
  const size_t num_tensors = tensors_.size() + header.tensors.size();
  if (num_tensors > size_t{kMaxGgufTensors}) {
    return LoadError(
        file.name(),
        absl::StrCat(
            "too many tensors up to here (got ", num_tensors, ", limit ", kMaxGgufTensors, ")"));
  }
  for (GgufTensor& tensor : header.tensors) {
    tensor.part = num_parts();
    tensors_.push_back(std::move(tensor));
  }
  header_bytes_ += header.bytes;
  file.ExpectSequentialReads();
  parts_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status GgufFile::OpenOtherParts(const std::string& path) {
  QUIRE_ASSIGN_OR_RETURN(const int32_t num_parts, NumPartsOf(metadata_));
  QUIRE_RETURN_IF_ERROR(CheckName(name(), num_parts));
  if (num_parts == 1) {
    return absl::OkStatus();
  }
  QUIRE_RETURN_IF_ERROR(CheckSplitKey(metadata_, kSplitNoKey, 0));
  const std::string folder = path.substr(0, path.size() - name().size());
  const std::optional<GgufSplitName> split = ParseGgufSplitName(name());
  for (int32_t number = 2; number <= num_parts; ++number) {
    const std::string part_name = split->OfPart(number);
    const absl::StatusOr<std::string> part_path =
        ResolveModelFile(folder.empty() ? "." : folder, part_name);
    if (!part_path.ok()) {
      return Error(part_path.status().code(),
                   "MODEL_FILE",
                   absl::StrCat("load: ",
                                PrintableName(part_name),
                                ": ",
                                part_path.status().message(),
                                " (part ",
                                number,
                                " of ",
                                num_parts,
                                ")"));
    }
    QUIRE_ASSIGN_OR_RETURN(RegularFile file, RegularFile::Open(*part_path, part_name));
    QUIRE_RETURN_IF_ERROR(AddPart(std::move(file)));
  }
  return CheckSplitKey(metadata_, kSplitTensorsKey, static_cast<int64_t>(tensors_.size()));
}

absl::Status GgufFile::CheckKeys(const GgufMetadata& metadata) const {
  QUIRE_RETURN_IF_ERROR(CheckSplitKey(metadata, kSplitNoKey, num_parts()));
  for (std::string_view key : {kSplitCountKey, kSplitTensorsKey}) {
    if (!metadata.Has(key)) {
      return metadata.KeyError(key, "is missing, but the model is split");
    }
  }
  for (const auto& [key, value] : metadata.values()) {
    if (key == kSplitNoKey || key == kGgufAlignmentKey) {
      continue;
    }
    const GgufValue* first = metadata_.Find(key);
    if (first == nullptr) {
      return metadata.KeyError(key, "is not in the first part");
    }
    if (*first != value) {
      return metadata.KeyError(key, "differs from the first part's");
    }
  }
  return absl::OkStatus();
}

absl::Status GgufFile::IndexNames() {
  by_name_.resize(tensors_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0);
  const auto name_of = [this](int32_t i) -> const std::string& {
    return tensors_[static_cast<size_t>(i)].name;
  };
  std::sort(by_name_.begin(), by_name_.end(), [&](int32_t a, int32_t b) {
    return name_of(a) < name_of(b);
  });
  const auto twice =
      std::adjacent_find(by_name_.begin(), by_name_.end(), [&](int32_t a, int32_t b) {
        return name_of(a) == name_of(b);
      });
  if (twice != by_name_.end()) {
    return TensorError(name(), name_of(*twice), "this tensor is there twice");
  }
  return absl::OkStatus();
}

int64_t GgufFile::file_bytes() const {
  int64_t bytes = 0;
  for (const RegularFile& part : parts_) {
    bytes += part.bytes();
  }
  return bytes;
}

const GgufTensor* GgufFile::Find(std::string_view name) const {
  const auto found = std::lower_bound(
      by_name_.begin(), by_name_.end(), name, [this](int32_t i, std::string_view wanted) {
        return tensors_[static_cast<size_t>(i)].name < wanted;
      });
  if (found == by_name_.end() || tensors_[static_cast<size_t>(*found)].name != name) {
    return nullptr;
  }
  return &tensors_[static_cast<size_t>(*found)];
}

absl::Status GgufFile::Read(const GgufTensor& tensor,
                            int64_t begin,
                            std::span<std::byte> out) const {
  QUIRE_CHECK(begin >= 0 && begin <= tensor.bytes &&
              static_cast<int64_t>(out.size()) <= tensor.bytes - begin);
  return parts_[static_cast<size_t>(tensor.part)].ReadAt(tensor.offset + begin, out);
}

void GgufFile::DropCached(const GgufTensor& tensor) const {
  parts_[static_cast<size_t>(tensor.part)].DropCached(tensor.offset, tensor.bytes);
}

}  // namespace quire
