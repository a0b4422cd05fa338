#include "worker/model/quantized_matrix.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/model/load_error.h"
#include "worker/model/stored_codes.h"

namespace quire {
namespace {

constexpr std::array<std::string_view, 11> kSignsOfQuantization = {".weight_packed",
                                                                   ".qweight",
                                                                   ".weight_scale",
                                                                   ".weight_scale_inv",
                                                                   ".scales",
                                                                   ".weight_zero_point",
                                                                   ".qzeros",
                                                                   ".weight_global_scale",
                                                                   ".weight_shape",
                                                                   ".weight_g_idx",
                                                                   ".g_idx"};
// Suffixes of tensors with which other engines quantize activations. Load ignores these tensors.
constexpr std::array<std::string_view, 5> kOfActivations = {
    ".input_scale", ".input_zero_point", ".input_scale_ub", ".activation_scale", ".output_scale"};

std::string_view CodesName(WeightStorage storage) {
  return storage == WeightStorage::kPacked ? ".weight_packed"
         : HasWordsAcrossRows(storage)     ? ".qweight"
                                           : ".weight";
}

std::string_view CodesType(WeightStorage storage) {
  return storage == WeightStorage::kInt8     ? "I8"
         : storage == WeightStorage::kFloat8 ? "F8_E4M3"
                                             : "I32";
}

absl::Status MatrixError(const WeightRef& tensor, std::string_view rule) {
  return TensorError(tensor.file->name(), tensor.tensor->name, rule);
}

// Fails unless the tensor has this type and shape.
absl::Status CheckTensor(const WeightRef& tensor,
                         std::string_view type,
                         std::span<const int64_t> shape) {
  if (tensor.tensor->type_name != type) {
    return MatrixError(tensor,
                       absl::StrCat("has another dtype than quantization_config says (got ",
                                    tensor.tensor->type_name,
                                    ", need ",
                                    ToAbsl(type),
                                    ")"));
  }
  if (!std::ranges::equal(tensor.tensor->shape, shape)) {
    return MatrixError(tensor,
                       absl::StrCat("has the wrong shape (got ",
                                    ShapeToString(tensor.tensor->shape),
                                    ", config.json needs ",
                                    ShapeToString(shape),
                                    ")"));
  }
  return absl::OkStatus();
}

// Fails if weight_shape, the tensor that repeats the shape of a packed matrix, is not [rows, cols].
// Files may lack weight_shape.
absl::Status CheckWeightShape(const WeightRef& tensor, int64_t rows, int64_t cols) {
  if (tensor.file == nullptr) {
    return absl::OkStatus();
  }
  const bool is_wide = tensor.tensor->type_name == "I64";
  QUIRE_RETURN_IF_ERROR(CheckTensor(tensor, is_wide ? "I64" : "I32", std::array<int64_t, 1>{2}));
  std::array<int64_t, 2> wide = {};
  std::array<int32_t, 2> narrow = {};
  const std::span<std::byte> raw =
      is_wide ? std::span<std::byte>(std::as_writable_bytes(std::span(wide)))
              : std::as_writable_bytes(std::span(narrow));
  QUIRE_RETURN_IF_ERROR(tensor.Read(0, raw));
  if (!is_wide) {
    wide = {narrow[0], narrow[1]};
  }
  if (wide != std::array{rows, cols}) {
    return MatrixError(tensor,
                       absl::StrCat("holds the wrong shape (got ",
                                    ShapeToString(wide),
                                    ", config.json needs ",
                                    ShapeToString(std::array{rows, cols}),
                                    ")"));
  }
  return absl::OkStatus();
}

}  // namespace

WeightRef QuantizedMatrix::FindIn(const WeightFiles& files, const std::string& module) {
  const WeightRef weight = files.Find(module + ".weight");
  if (weight.file != nullptr &&
      (weight.tensor->type_name == "I8" || weight.tensor->type_name.starts_with("F8"))) {
    return weight;
  }
  for (const std::string_view sign : kSignsOfQuantization) {
    const WeightRef found = files.Find(absl::StrCat(module, ToAbsl(sign)));
    if (found.file != nullptr) {
      return found;
    }
  }
  return {};
}

absl::StatusOr<QuantizedMatrix> QuantizedMatrix::Open(const WeightFiles& files,
                                                      const std::string& module,
                                                      const WeightScheme& scheme,
                                                      int64_t rows,
                                                      int64_t cols) {
  const int64_t per_word = CodesPerWord(scheme.bits);
  const bool has_whole_words =
      rows % per_word == 0 && (scheme.storage != WeightStorage::kGptq || cols % per_word == 0);
  if (HasWordsAcrossRows(scheme.storage) && !has_whole_words) {
    return TensorError(files.name(),
                       module + ".qweight",
                       absl::StrCat("a matrix of this format must have multiples of ",
                                    per_word,
                                    " rows and columns (config.json needs ",
                                    ShapeToString(std::array{rows, cols}),
                                    ")"));
  }
  QUIRE_ASSIGN_OR_RETURN(const StoredFactors factors,
                         StoredFactors::Open(files, module, scheme, rows, cols));
  QuantizedMatrix matrix(factors);
  matrix.scheme_ = scheme;
  matrix.rows_ = rows;
  matrix.cols_ = cols;
  QUIRE_RETURN_IF_ERROR(matrix.OpenCodes(files, module));
  QUIRE_RETURN_IF_ERROR(matrix.OpenGroupIndex(files, module));
  for (const std::string_view name : kOfActivations) {
    const WeightRef found = files.Find(absl::StrCat(module, ToAbsl(name)));
    if (found.file != nullptr) {
      matrix.names_without_use_.push_back(found.tensor->name);
    }
  }
  return matrix;
}

absl::Status QuantizedMatrix::OpenCodes(const WeightFiles& files, const std::string& module) {
  const std::string name = absl::StrCat(module, ToAbsl(CodesName(scheme_.storage)));
  codes_ = files.Find(name);
  if (codes_.file == nullptr) {
    return TensorError(files.name(), name, "is missing");
  }
  QUIRE_RETURN_IF_ERROR(
      CheckTensor(codes_, CodesType(scheme_.storage), ShapeOfCodes(scheme_, rows_, cols_)));
  if (scheme_.storage != WeightStorage::kPacked) {
    return absl::OkStatus();
  }
  const WeightRef shape = files.Find(module + ".weight_shape");
  if (shape.file != nullptr) {
    names_without_use_.push_back(shape.tensor->name);
  }
  return CheckWeightShape(shape, rows_, cols_);
}

absl::Status QuantizedMatrix::OpenGroupIndex(const WeightFiles& files, const std::string& module) {
  const std::string name =
      module + (HasWordsAcrossRows(scheme_.storage) ? ".g_idx" : ".weight_g_idx");
  group_index_ = files.Find(name);
  if (group_index_.file == nullptr) {
    return scheme_.needs_group_index
               ? TensorError(files.name(), name, "is missing, but config.json says act-order")
               : absl::OkStatus();
  }
  return CheckTensor(group_index_, "I32", std::array{cols_});
}

std::vector<std::string> QuantizedMatrix::names() const {
  std::vector<std::string> names = factors_.names();
  names.push_back(codes_.tensor->name);
  if (group_index_.file != nullptr) {
    names.push_back(group_index_.tensor->name);
  }
  names.insert(names.end(), names_without_use_.begin(), names_without_use_.end());
  return names;
}

int64_t QuantizedMatrix::StripRows(int64_t num_cols) const {
  constexpr int64_t kBytesOfRows = int64_t{256} << 10;  // fits in the CPU's cache
  constexpr int64_t kBytesAcrossRows = int64_t{4} << 20;
  const int64_t bytes = HasWordsAcrossRows(scheme_.storage) ? kBytesAcrossRows : kBytesOfRows;
  return std::max<int64_t>(bytes / num_cols / kStripAlignment, 1) * kStripAlignment;
}

absl::StatusOr<WeightStrip> QuantizedMatrix::Load(Slice rows, Slice cols) const {
  WeightStrip strip;
  strip.rows = rows.count;
  strip.cols = cols.count;
  strip.groups = factors_.groups();
  strip.has_float_codes = scheme_.storage == WeightStorage::kFloat8;
  strip.codes.resize(static_cast<size_t>(rows.count * cols.count));
  QUIRE_RETURN_IF_ERROR(ReadCodes(scheme_, codes_, rows, cols, strip.codes));
  QUIRE_RETURN_IF_ERROR(factors_.Read(rows, strip.scales, strip.zeros));
  QUIRE_ASSIGN_OR_RETURN(strip.runs, Runs(cols));
  return strip;
}

absl::StatusOr<std::vector<WeightStrip::Run>> QuantizedMatrix::Runs(Slice cols) const {
  std::vector<int32_t> index;
  if (group_index_.file != nullptr) {
    index.resize(static_cast<size_t>(cols.count));
    QUIRE_RETURN_IF_ERROR(group_index_.Read(cols.begin * int64_t{sizeof(int32_t)},
                                            std::as_writable_bytes(std::span(index))));
  }
  std::vector<WeightStrip::Run> runs;
  for (int64_t col = 0; col < cols.count; ++col) {
    const int64_t group = !index.empty()            ? index[static_cast<size_t>(col)]
                          : scheme_.group_cols == 0 ? 0
                                                    : (cols.begin + col) / scheme_.group_cols;
    if (group < 0 || group >= factors_.groups()) {
      return MatrixError(group_index_,
                         absl::StrCat("column ",
                                      cols.begin + col,
                                      " has a group out of range (got ",
                                      group,
                                      ", limit ",
                                      factors_.groups() - 1,
                                      ")"));
    }
    if (runs.empty() || runs.back().group != group) {
      runs.push_back({.begin = col, .end = col, .group = group});
    }
    runs.back().end = col + 1;
  }
  return runs;
}

}  // namespace quire
