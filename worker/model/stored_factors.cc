#include "worker/model/stored_factors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include "absl/strings/str_cat.h"

#include "common/base/math.h"
#include "common/base/shortest_decimal.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/model/element_float.h"
#include "common/model/load_error.h"
#include "worker/model/stored_codes.h"

namespace quire {
namespace {

// Upper bound on a scale's magnitude. A larger scale could make infinite weights, since a code is
// at most 448 and a zero at most 256.
constexpr float kMaxWeightScale = 1e30F;

absl::Status FactorError(const WeightRef& tensor, std::string_view rule) {
  return TensorError(tensor.file->name(), tensor.tensor->name, rule);
}

absl::Status WrongShape(const WeightRef& tensor, std::span<const int64_t> need) {
  return FactorError(tensor,
                     absl::StrCat("has the wrong shape (got ",
                                  ShapeToString(tensor.tensor->shape),
                                  ", need ",
                                  ShapeToString(need),
                                  ")"));
}

absl::Status RequireType(const WeightRef& tensor, std::string_view type) {
  if (tensor.tensor->type_name == type) {
    return absl::OkStatus();
  }
  return FactorError(tensor,
                     absl::StrCat("has an unsupported dtype (got ",
                                  tensor.tensor->type_name,
                                  ", need ",
                                  ToAbsl(type),
                                  ")"));
}

// Returns the suffixes that the name of the tensor of scales may have after the module's name.
std::vector<std::string_view> ScaleNames(WeightStorage storage) {
  if (HasWordsAcrossRows(storage)) {
    return {".scales"};
  }
  return storage == WeightStorage::kFloat8
             ? std::vector<std::string_view>{".weight_scale", ".weight_scale_inv"}
             : std::vector<std::string_view>{".weight_scale"};
}

// Sets `out` to `count` bytes of the tensor, from byte `begin` on.
absl::Status ReadPiece(const WeightRef& tensor,
                       int64_t begin,
                       int64_t count,
                       std::vector<std::byte>& out) {
  out.resize(static_cast<size_t>(count));
  return tensor.Read(begin, out);
}

}  // namespace

absl::StatusOr<StoredFactors> StoredFactors::Open(const WeightFiles& files,
                                                  const std::string& module,
                                                  const WeightScheme& scheme,
                                                  int64_t rows,
                                                  int64_t cols) {
  StoredFactors factors;
  factors.scheme_ = scheme;
  factors.rows_ = rows;
  factors.cols_ = cols;
  factors.groups_ = scheme.group_cols == 0 ? 1 : DivCeil(cols, scheme.group_cols);
  QUIRE_RETURN_IF_ERROR(factors.OpenScales(files, module));
  QUIRE_RETURN_IF_ERROR(factors.OpenZeros(files, module));
  return factors;
}

absl::Status StoredFactors::OpenScales(const WeightFiles& files, const std::string& module) {
  const std::vector<std::string_view> names = ScaleNames(scheme_.storage);
  for (const std::string_view name : names) {
    const WeightRef found = files.Find(absl::StrCat(module, ToAbsl(name)));
    if (found.file != nullptr && scales_.file != nullptr) {
      return FactorError(found, absl::StrCat("is beside ", scales_.tensor->name));
    }
    scales_ = found.file != nullptr ? found : scales_;
  }
  if (scales_.file == nullptr) {
    return TensorError(files.name(), absl::StrCat(module, ToAbsl(names.front())), "is missing");
  }
  const std::optional<WeightFormat> format = scales_.tensor->format;
  if (!format.has_value() || IsQuantized(*format)) {
    return RequireType(scales_, "F32, F16 or BF16");
  }
  using Shape = std::vector<int64_t>;
  const Shape& shape = scales_.tensor->shape;
  if (HasWordsAcrossRows(scheme_.storage)) {
    grid_ = Grid::kTransposed;
    const Shape need = {groups_, rows_};
    return shape == need ? absl::OkStatus() : WrongShape(scales_, need);
  }
  const bool is_for_whole_rows = scheme_.group_cols == 0;
  if (is_for_whole_rows && (shape.empty() || shape == Shape{1} || shape == Shape{1, 1})) {
    grid_ = Grid::kOne;
    return absl::OkStatus();
  }
  const Shape need = {DivCeil(rows_, scheme_.group_rows), groups_};
  const bool is_right = shape == need || (is_for_whole_rows && shape == Shape{rows_});
  return is_right ? absl::OkStatus() : WrongShape(scales_, need);
}

absl::Status StoredFactors::OpenZeros(const WeightFiles& files, const std::string& module) {
  const std::string name =
      absl::StrCat(module, HasWordsAcrossRows(scheme_.storage) ? ".qzeros" : ".weight_zero_point");
  const WeightRef zeros = files.Find(name);
  if (scheme_.is_symmetric) {
    return zeros.file == nullptr
               ? absl::OkStatus()
               : FactorError(zeros, "is there although config.json says symmetric");
  }
  if (zeros.file == nullptr) {
    return TensorError(files.name(), name, "is missing");
  }
  zeros_ = zeros;
  const int64_t per_word = CodesPerWord(scheme_.bits);
  if (HasWordsAcrossRows(scheme_.storage)) {
    QUIRE_RETURN_IF_ERROR(RequireType(zeros, "I32"));
    const std::vector<int64_t> need = {groups_, rows_ / per_word};
    return zeros.tensor->shape == need ? absl::OkStatus() : WrongShape(zeros, need);
  }
  // int-quantized files, and old pack-quantized files, store one byte per zero.
  if (zeros.tensor->type_name == "I8") {
    return zeros.tensor->shape == scales_.tensor->shape ? absl::OkStatus()
                                                        : WrongShape(zeros, scales_.tensor->shape);
  }
  if (scheme_.storage != WeightStorage::kPacked) {
    return RequireType(zeros, "I8");
  }
  QUIRE_RETURN_IF_ERROR(RequireType(zeros, "I32"));
  if (grid_ == Grid::kOne) {
    return FactorError(zeros, "must be I8 if a scale is for the whole matrix");
  }
  const std::vector<int64_t> need = {DivCeil(rows_, per_word), groups_};
  return zeros.tensor->shape == need ? absl::OkStatus() : WrongShape(zeros, need);
}

std::vector<std::string> StoredFactors::names() const {
  std::vector<std::string> names = {scales_.tensor->name};
  if (zeros_.file != nullptr) {
    names.push_back(zeros_.tensor->name);
  }
  return names;
}

absl::Status StoredFactors::Read(Slice rows,
                                 std::vector<float>& scales,
                                 std::vector<int16_t>& zeros) const {
  const auto count = static_cast<size_t>(rows.count * groups_);
  scales.assign(count, 0.0F);
  QUIRE_RETURN_IF_ERROR(ReadScales(rows, scales));
  if (scheme_.storage == WeightStorage::kFloat8) {
    return absl::OkStatus();
  }
  // Codes are unsigned, so the zero of a symmetric matrix is the middle of their range.
  zeros.assign(count, static_cast<int16_t>(1 << (scheme_.bits - 1)));
  return zeros_.file == nullptr ? absl::OkStatus() : ReadZeros(rows, zeros);
}

absl::Status StoredFactors::ReadScales(Slice rows, std::vector<float>& scales) const {
  const DType type = PlainTypeOf(*scales_.tensor->format);
  const int64_t size = SizeOf(type);
  std::vector<std::byte> raw;
  auto set = [&](int64_t row, int64_t group, int64_t index) {
    const float scale = ElementToFloat(raw.data() + index * size, type);
    scales[static_cast<size_t>(row * groups_ + group)] = scale;
    // Written with a negation, so that NaN is refused too.
    if (!(std::abs(scale) <= kMaxWeightScale)) {
      return FactorError(scales_,
                         absl::StrCat("a scale must be finite and at most 1e30 (got ",
                                      ShortestDecimal(scale),
                                      " for row ",
                                      rows.begin + row,
                                      ", group ",
                                      group,
                                      ")"));
    }
    return absl::OkStatus();
  };
  if (grid_ == Grid::kTransposed) {
    for (int64_t group = 0; group < groups_; ++group) {
      QUIRE_RETURN_IF_ERROR(
          ReadPiece(scales_, (group * rows_ + rows.begin) * size, rows.count * size, raw));
      for (int64_t row = 0; row < rows.count; ++row) {
        QUIRE_RETURN_IF_ERROR(set(row, group, row));
      }
    }
    return absl::OkStatus();
  }
  const int64_t first = GridRow(rows.begin);
  const int64_t count = GridRow(rows.begin + rows.count - 1) + 1 - first;
  QUIRE_RETURN_IF_ERROR(ReadPiece(scales_, first * groups_ * size, count * groups_ * size, raw));
  for (int64_t row = 0; row < rows.count; ++row) {
    for (int64_t group = 0; group < groups_; ++group) {
      QUIRE_RETURN_IF_ERROR(set(row, group, (GridRow(rows.begin + row) - first) * groups_ + group));
    }
  }
  return absl::OkStatus();
}

absl::Status StoredFactors::ReadZeros(Slice rows, std::vector<int16_t>& zeros) const {
  const int32_t middle = 1 << (scheme_.bits - 1);
  const uint32_t mask = (1U << scheme_.bits) - 1;
  const int64_t per_word = CodesPerWord(scheme_.bits);
  std::vector<std::byte> raw;
  if (zeros_.tensor->type_name == "I8") {
    const int64_t first = GridRow(rows.begin);
    const int64_t count = GridRow(rows.begin + rows.count - 1) + 1 - first;
    QUIRE_RETURN_IF_ERROR(ReadPiece(zeros_, first * groups_, count * groups_, raw));
    for (int64_t row = 0; row < rows.count; ++row) {
      for (int64_t group = 0; group < groups_; ++group) {
        const auto at = static_cast<size_t>((GridRow(rows.begin + row) - first) * groups_ + group);
        zeros[static_cast<size_t>(row * groups_ + group)] =
            static_cast<int16_t>(static_cast<int8_t>(raw[at]) + middle);
      }
    }
    return absl::OkStatus();
  }
  auto word_at = [&](int64_t index) {
    uint32_t word = 0;
    std::memcpy(&word, raw.data() + index * int64_t{sizeof(word)}, sizeof(word));
    return word;
  };
  const int64_t first_word = rows.begin / per_word;
  const int64_t num_words = DivCeil(rows.begin + rows.count, per_word) - first_word;
  const bool is_transposed = HasWordsAcrossRows(scheme_.storage);
  const int64_t words_of_group = is_transposed ? zeros_.tensor->shape[1] : 1;
  for (int64_t group = 0; group < groups_; ++group) {
    // weight_zero_point, which is not transposed, is [rows / codes per word, groups]. So the words
    // of all groups are read at once, with group 0.
    if (is_transposed) {
      QUIRE_RETURN_IF_ERROR(
          ReadPiece(zeros_, (group * words_of_group + first_word) * 4, num_words * 4, raw));
    } else if (group == 0) {
      QUIRE_RETURN_IF_ERROR(
          ReadPiece(zeros_, first_word * groups_ * 4, num_words * groups_ * 4, raw));
    }
    for (int64_t row = 0; row < rows.count; ++row) {
      const int64_t index = row / per_word;
      const int64_t in_word = row % per_word;
      const int64_t place = scheme_.storage == WeightStorage::kAwq ? AwqPlace(in_word) : in_word;
      const uint32_t word = word_at(is_transposed ? index : index * groups_ + group);
      const uint32_t zero = (word >> (place * scheme_.bits)) & mask;
      // GPTQ v1 stores zero - 1. The addition does not wrap around, as in the kernels of AutoGPTQ
      // and exllama.
      zeros[static_cast<size_t>(row * groups_ + group)] =
          static_cast<int16_t>(zero + (scheme_.has_zeros_less_one ? 1 : 0));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire
