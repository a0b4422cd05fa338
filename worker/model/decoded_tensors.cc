#include "worker/model/decoded_tensors.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/math.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/model/half_float.h"
#include "common/model/load_error.h"
#include "kernels/api/dequantize.h"
#include "worker/model/part_places.h"

namespace quire {
namespace {

constexpr int64_t kBf16Bytes = 2;
// Upper bound on the weights decoded at a time, so that they stay in the CPU's cache.
constexpr int64_t kMaxWeightsPerPiece = int64_t{1} << 15;

class Finder {
 public:
  Finder(int32_t num_ranks, const WeightFiles& files) : num_ranks_(num_ranks), files_(files) {}

  WeightFormat FormatOfTensor(const TensorShape& tensor) const {
    return *WeightOf(tensor).tensor->format;
  }

  // Marks the tensor to be decoded. Does nothing if the tensor is not quantized.
  void Decode(const TensorShape& tensor) {
    const WeightFormat format = FormatOfTensor(tensor);
    if (!IsQuantized(format)) {
      return;
    }
    found_.names.insert(tensor.name);
    found_.formats.emplace(NameOf(format));
    found_.held_bytes += tensor.num_elements() * kBf16Bytes;
    found_.added_bytes += tensor.rows * tensor.cols * kBf16Bytes - WeightOf(tensor).tensor->bytes;
  }

  // Checks a tensor that keeps its format. Fails if the rank's columns begin or end inside a group
  // of kInputGroup inputs; the last group may be shorter.
  absl::Status Keep(const TensorShape& tensor) const {
    const Slice columns = tensor.held_cols;
    const int64_t end = columns.begin + columns.count;
    if (columns.begin % kInputGroup == 0 && (end % kInputGroup == 0 || end == tensor.cols)) {
      return absl::OkStatus();
    }
    const WeightRef& weight = WeightOf(tensor);
    return TensorError(weight.file->name(),
                       weight.tensor->name,
                       absl::StrCat("cannot be divided over ",
                                    num_ranks_,
                                    " ranks: columns of a rank must be whole groups of ",
                                    kInputGroup,
                                    " weights of ",
                                    weight.tensor->type_name,
                                    " (got columns ",
                                    columns.begin,
                                    " to ",
                                    end,
                                    ")"));
  }

  TensorsToDecode Take() { return std::move(found_); }

 private:
  // The files have the tensor, because CheckWeightFiles has accepted the files.
  const WeightRef& WeightOf(const TensorShape& tensor) const {
    return files_.tensors().find(tensor.name)->second;
  }

  const int32_t num_ranks_;
  const WeightFiles& files_;
  TensorsToDecode found_;
};

TensorGroup MatricesOf(const LinearLayout& layout) {
  TensorGroup group = GroupOf(layout);
  std::erase_if(group, [](const TensorShape& tensor) { return tensor.rows == 0; });
  return group;
}

void RoundToBf16(std::span<const float> weights, std::byte* out) {
  for (const float weight : weights) {
    const uint16_t bits = FloatToBFloat16(weight);
    std::memcpy(out, &bits, sizeof(bits));
    out += sizeof(bits);
  }
}

}  // namespace

absl::StatusOr<TensorsToDecode> FindTensorsToDecode(const WeightLayout& layout,
                                                    int32_t num_ranks,
                                                    const WeightFiles& files,
                                                    const KernelBackend& backend) {
  Finder finder(num_ranks, files);
  for (const LinearLayout* linear : LinearLayers(layout)) {
    const TensorGroup matrices = MatricesOf(*linear);
    const bool are_kept = std::all_of(matrices.begin(), matrices.end(), [&](const auto& matrix) {
      const WeightFormat format = finder.FormatOfTensor(matrix);
      return IsQuantized(format) && backend.CanMultiply(format);
    });
    for (const TensorShape& matrix : matrices) {
      if (are_kept) {
        QUIRE_RETURN_IF_ERROR(finder.Keep(matrix));
      } else {
        finder.Decode(matrix);
      }
    }
  }
  if (backend.space().has_value() && !layout.is_tied()) {
    finder.Decode(GroupOf(layout.token_table).front());
  }
  return finder.Take();
}

absl::Status DecodedTensors::Read(const TensorShape& tensor,
                                  int64_t begin,
                                  std::span<std::byte> out) const {
  if (!decoded_.names.contains(tensor.name)) {
    return source_.Read(tensor, begin, out);
  }
  const int64_t cols = tensor.held_cols.count;
  int64_t at = begin / kBf16Bytes;  // index of a weight in the rank's part
  while (!out.empty()) {
    const int64_t left = std::ssize(out) / kBf16Bytes;
    const int64_t col = at % cols;
    TensorShape piece = tensor;
    piece.held_rows = {.begin = tensor.held_rows.begin + at / cols, .count = 1};
    piece.held_cols = {.begin = tensor.held_cols.begin + col,
                       .count = std::min({cols - col, left, kMaxWeightsPerPiece})};
    if (piece.held_cols.count == cols) {
      piece.held_rows.count = std::min(left, kMaxWeightsPerPiece) / cols;
    }
    const auto bytes = static_cast<size_t>(piece.num_elements() * kBf16Bytes);
    QUIRE_RETURN_IF_ERROR(Decode(piece, out.first(bytes)));
    out = out.subspan(bytes);
    at += piece.num_elements();
  }
  return absl::OkStatus();
}

absl::Status DecodedTensors::Decode(const TensorShape& piece, std::span<std::byte> out) const {
  const WeightFormat format = source_.format(piece.name);
  const MatrixView part = PartOf(piece, format);
  const auto row_bytes = static_cast<size_t>(RowBytes(part));
  std::vector<std::byte> blocks(static_cast<size_t>(part.rows) * row_bytes);
  QUIRE_RETURN_IF_ERROR(source_.Read(piece, 0, blocks));
  std::vector<float> weights(
      static_cast<size_t>(RoundUp(part.skipped_cols + part.cols, InfoOf(format).block_weights)));
  const auto row_weights = std::span(weights).subspan(static_cast<size_t>(part.skipped_cols),
                                                      static_cast<size_t>(part.cols));
  for (int64_t row = 0; row < part.rows; ++row) {
    const auto at = static_cast<size_t>(row);
    Dequantize(format, std::span(blocks).subspan(at * row_bytes, row_bytes), weights);
    RoundToBf16(row_weights, &out[at * row_weights.size() * size_t{kBf16Bytes}]);
  }
  return absl::OkStatus();
}

}  // namespace quire
