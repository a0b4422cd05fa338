#include "worker/model/safetensors_file.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "common/base/math.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/json/json.h"
#include "common/model/load_error.h"

namespace quire {
namespace {

constexpr int64_t kLengthBytes = 8;
// A tensor takes six JSON values and one more for each dimension, so 16 per tensor are ample.
constexpr JsonLimits kHeaderLimits = {.max_depth = 3,  // levels: header, tensor, shape
                                      .max_values = 16 * kMaxSafetensorsTensors};
constexpr size_t kMaxRank = 16;

struct DTypeInfo {
  std::string_view name;
  int64_t bits;
  std::optional<WeightFormat> format;
};

constexpr std::array<DTypeInfo, 20> kDTypes = {{
    {"F32", 32, WeightFormat::kF32},   {"F16", 16, WeightFormat::kF16},
    {"BF16", 16, WeightFormat::kBF16}, {"F64", 64, std::nullopt},
    {"I64", 64, std::nullopt},         {"U64", 64, std::nullopt},
    {"I32", 32, std::nullopt},         {"U32", 32, std::nullopt},
    {"I16", 16, std::nullopt},         {"U16", 16, std::nullopt},
    {"I8", 8, std::nullopt},           {"U8", 8, std::nullopt},
    {"BOOL", 8, std::nullopt},         {"F8_E4M3", 8, std::nullopt},
    {"F8_E5M2", 8, std::nullopt},      {"F8_E8M0", 8, std::nullopt},
    {"C64", 64, std::nullopt},         {"F4", 4, std::nullopt},
    {"F6_E2M3", 6, std::nullopt},      {"F6_E3M2", 6, std::nullopt},
}};

const DTypeInfo* FindDType(std::string_view name) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == name) {
      return &info;
    }
  }
  return nullptr;
}

// Returns nullopt if the value is not an integer in [0, 2^63).
std::optional<int64_t> AsSize(const Json& value) {
  if (!value.is_number_integer()) {
    return std::nullopt;
  }
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX}) {
    return std::nullopt;
  }
  int64_t number = value.get<int64_t>();
  return number < 0 ? std::nullopt : std::optional<int64_t>(number);
}

absl::Status CheckMetadata(const std::string& file, const Json& metadata) {
  bool ok =
      metadata.is_object() && std::all_of(metadata.begin(), metadata.end(), [](const Json& value) {
        return value.is_string();
      });
  return ok ? absl::OkStatus() : LoadError(file, "__metadata__ must map strings to strings");
}

// Returns a tensor's size in bytes. Errors: the product of its shape overflows, or its elements do
// not fill whole bytes.
absl::StatusOr<int64_t> TensorBytes(const std::string& file,
                                    const StoredTensor& tensor,
                                    int64_t bits_per_value) {
  int64_t count = 1;
  for (int64_t size : tensor.shape) {
    std::optional<int64_t> product = CheckedMultiply(count, size);
    if (!product.has_value()) {
      return TensorError(file, tensor.name, "the product of the shape overflows");
    }
    count = *product;
  }
  std::optional<int64_t> bits = CheckedMultiply(count, bits_per_value);
  if (!bits.has_value()) {
    return TensorError(file, tensor.name, "the size in bytes overflows");
  }
  if (*bits % 8 != 0) {
    return TensorError(file, tensor.name, "does not fill whole bytes");
  }
  return *bits / 8;
}

absl::Status ParseShape(const std::string& file, const Json& entry, StoredTensor& tensor) {
  auto shape = entry.find("shape");
  if (shape == entry.end() || !shape->is_array() || shape->size() > kMaxRank) {
    return TensorError(
        file, tensor.name, absl::StrCat("shape must be a list of at most ", kMaxRank, " sizes"));
  }
  for (const Json& value : *shape) {
    std::optional<int64_t> size = AsSize(value);
    if (!size.has_value()) {
      return TensorError(file, tensor.name, "shape must hold integers in [0, 2^63)");
    }
    tensor.shape.push_back(*size);
  }
  return absl::OkStatus();
}

absl::StatusOr<StoredTensor> ParseTensor(const std::string& file,
                                         const std::string& name,
                                         const Json& entry,
                                         int64_t data_start,
                                         int64_t data_bytes) {
  StoredTensor tensor;
  tensor.name = name;
  if (!entry.is_object()) {
    return TensorError(file, name, "must be an object");
  }
  auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) {
    return TensorError(file, name, "dtype must be a string");
  }
  tensor.type_name = dtype->get<std::string>();
  const DTypeInfo* info = FindDType(tensor.type_name);
  if (info == nullptr) {
    return TensorError(
        file, name, absl::StrCat("unknown dtype (got ", PrintableName(tensor.type_name), ")"));
  }
  tensor.format = info->format;
  QUIRE_RETURN_IF_ERROR(ParseShape(file, entry, tensor));
  QUIRE_ASSIGN_OR_RETURN(tensor.bytes, TensorBytes(file, tensor, info->bits));

  auto offsets = entry.find("data_offsets");
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2) {
    return TensorError(file, name, "data_offsets must be a list of two offsets");
  }
  std::optional<int64_t> begin = AsSize((*offsets)[0]);
  std::optional<int64_t> end = AsSize((*offsets)[1]);
  if (!begin.has_value() || !end.has_value()) {
    return TensorError(file, name, "data_offsets must be integers in [0, 2^63)");
  }
  if (*begin > *end) {
    return TensorError(file, name, "data_offsets run backwards");
  }
  if (*end > data_bytes) {
    return TensorError(
        file,
        name,
        absl::StrCat("data_offsets end beyond the file (got ", *end, ", limit ", data_bytes, ")"));
  }
  if (*end - *begin != tensor.bytes) {
    return TensorError(file,
                       name,
                       absl::StrCat("data_offsets do not match dtype and shape (got ",
                                    *end - *begin,
                                    " bytes, need ",
                                    tensor.bytes,
                                    ")"));
  }
  if (entry.size() != 3) {
    return TensorError(file, name, "has a field other than dtype, shape and data_offsets");
  }
  tensor.offset = data_start + *begin;
  return tensor;
}

}  // namespace

std::string ShapeToString(std::span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape.begin(), shape.end(), ", "), "]");
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path, std::string name) {
  SafetensorsFile file;
  QUIRE_ASSIGN_OR_RETURN(file.file_, RegularFile::Open(path, std::move(name)));
  QUIRE_RETURN_IF_ERROR(file.ReadHeader());
  file.file_.ExpectSequentialReads();
  return file;
}

absl::Status SafetensorsFile::ReadHeader() {
  if (file_bytes() < kLengthBytes) {
    return LoadError(
        name(),
        absl::StrCat("is shorter than the 8 bytes of the header length (got ", file_bytes(), ")"));
  }
  std::array<std::byte, kLengthBytes> length_bytes = {};
  QUIRE_RETURN_IF_ERROR(file_.ReadAt(0, length_bytes));
  uint64_t length = 0;
  for (size_t i = 0; i < length_bytes.size(); ++i) {
    length |= static_cast<uint64_t>(length_bytes[i]) << (8 * i);
  }
  if (length == 0) {
    return LoadError(name(), "header length is 0");
  }
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return LoadError(
        name(),
        absl::StrCat(
            "header is too long (got ", length, ", limit ", kMaxSafetensorsHeaderBytes, ")"));
  }
  const auto header_bytes = static_cast<int64_t>(length);
  if (header_bytes > file_bytes() - kLengthBytes) {
    return LoadError(name(),
                     absl::StrCat("header ends beyond the file (got ",
                                  header_bytes,
                                  ", limit ",
                                  file_bytes() - kLengthBytes,
                                  ")"));
  }
  data_start_ = kLengthBytes + header_bytes;
  std::string header(static_cast<size_t>(header_bytes), '\0');
  QUIRE_RETURN_IF_ERROR(
      file_.ReadAt(kLengthBytes, std::as_writable_bytes(std::span<char>(header))));
  QUIRE_RETURN_IF_ERROR(ParseHeader(header));
  return CheckLayout();
}

absl::Status SafetensorsFile::ParseHeader(std::string_view header) {
  if (header.front() != '{') {
    return LoadError(name(), "header does not start with '{'");
  }
  absl::StatusOr<Json> json = ParseJson(header, kHeaderLimits);
  if (!json.ok()) {
    return LoadError(name(), absl::StrCat("header: ", json.status().message()));
  }
  for (const auto& [name, entry] : json->items()) {
    if (name == "__metadata__") {
      QUIRE_RETURN_IF_ERROR(CheckMetadata(file_.name(), entry));
      continue;
    }
    QUIRE_ASSIGN_OR_RETURN(
        StoredTensor tensor,
        ParseTensor(file_.name(), name, entry, data_start_, file_bytes() - data_start_));
    tensors_.push_back(std::move(tensor));
  }
  if (static_cast<int64_t>(tensors_.size()) > kMaxSafetensorsTensors) {
    return LoadError(name(),
                     absl::StrCat("has too many tensors (got ",
                                  tensors_.size(),
                                  ", limit ",
                                  kMaxSafetensorsTensors,
                                  ")"));
  }
  return absl::OkStatus();
}

absl::Status SafetensorsFile::CheckLayout() {
  std::sort(tensors_.begin(), tensors_.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  });
  int64_t end = data_start_;
  for (const StoredTensor& tensor : tensors_) {
    if (tensor.offset < end) {
      return TensorError(name(), tensor.name, "overlaps another tensor");
    }
    if (tensor.offset > end) {
      return TensorError(
          name(),
          tensor.name,
          absl::StrCat("leaves a hole of ", tensor.offset - end, " bytes before it"));
    }
    end = tensor.offset + tensor.bytes;
  }
  if (end != file_bytes()) {
    return LoadError(name(),
                     absl::StrCat("has ", file_bytes() - end, " bytes after the last tensor"));
  }
  return absl::OkStatus();
}

}  // namespace quire
