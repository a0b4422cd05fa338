#include "kernels/cpu/quantized_linear.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/error.h"
#include "common/base/math.h"
#include "common/base/status_macros.h"
#include "kernels/api/dequantize.h"
#include "kernels/api/linear_source.h"
#include "kernels/api/quantize.h"
#include "kernels/api/row_reader.h"
#include "kernels/api/weight_check.h"
#include "kernels/cpu/code_format.h"
#include "kernels/cpu/linear_groups.h"
#include "kernels/cpu/row_tasks.h"

namespace quire {
namespace {

// One call of QuantizedLinear.
class Product {
 public:
  Product(const LinearParams& params,
          InputType input_type,
          const QuantizedKernels& kernels,
          ThreadTeam& team)
      : params_(params),
        input_type_(input_type),
        weight_(static_cast<const CpuQuantizedLinear&>(*params.weight)),
        kernels_(kernels),
        team_(team) {}

  void Run() {
    if (input_type_ == InputType::kInt8) {
      RoundInputs();
    }
    int64_t num_panels = 0;
    for (const PackedCodes& part : weight_.parts()) {
      num_panels += part.num_panels;
    }
    const int64_t num_blocks = DivCeil(params_.num_tokens, RowsPerBlock());
    const PanelGroups groups = ChoosePanelGroups(
        {.num_panels = num_panels,
         .num_blocks = num_blocks,
         .operations = 2 * params_.num_tokens * weight_.in_features() * weight_.out_features(),
         .num_threads = team_.num_threads()});
    team_.ParallelFor(num_blocks * groups.num_groups, [&](int64_t task, int /*thread*/) {
      const int64_t first_row = task / groups.num_groups * RowsPerBlock();
      const int64_t end_row = std::min(first_row + RowsPerBlock(), params_.num_tokens);
      const int64_t first_panel = task % groups.num_groups * groups.panels_per_group;
      const int64_t end_panel = std::min(first_panel + groups.panels_per_group, num_panels);
      MultiplyPanels(first_row, end_row, first_panel, end_panel);
    });
  }

 private:
  // Returns the number of rows of a block. The block's rounded inputs stay in the second-level
  // cache while a task multiplies them by all its panels.
  int64_t RowsPerBlock() const {
    constexpr int64_t kBlockBytes = int64_t{192} << 10;
    const int64_t tiles = kBlockBytes / weight_.in_features() / kernels_.max_rows;
    return kernels_.max_rows * std::max(tiles, int64_t{4});
  }

  void RoundInputs() {
    const int64_t width = weight_.in_features();
    num_groups_ = width / kGroupWeights;
    constexpr int64_t kGroupBytes = sizeof(float) + 2 * sizeof(int32_t) + kGroupWeights;
    scales_ = static_cast<float*>(
        team_.SharedScratch(static_cast<size_t>(params_.num_tokens * num_groups_ * kGroupBytes)));
    sums_ = reinterpret_cast<int32_t*>(scales_ + params_.num_tokens * num_groups_);
    codes_ = reinterpret_cast<int8_t*>(sums_ + 2 * params_.num_tokens * num_groups_);
    const auto* const x = static_cast<const float*>(params_.x);
    ForEachRow(params_.num_tokens, width, team_, [&](int64_t row) {
      kernels_.round_inputs(x + row * width,
                            num_groups_,
                            codes_ + row * width,
                            scales_ + row * num_groups_,
                            sums_ + 2 * row * num_groups_);
    });
  }

  // Multiplies rows by panels. Panels are numbered across all parts.
  void MultiplyPanels(int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel) {
    int64_t panel_of_part = 0;
    int64_t column_of_part = 0;
    for (const PackedCodes& part : weight_.parts()) {
      const int64_t begin = std::max(first_panel - panel_of_part, int64_t{0});
      const int64_t end = std::min(end_panel - panel_of_part, part.num_panels);
      for (int64_t p = begin; p < end; ++p) {
        MultiplyPanel(part, p, column_of_part + p * part.lanes, first_row, end_row);
      }
      panel_of_part += part.num_panels;
      column_of_part += part.rows;
    }
  }

  void MultiplyPanel(
      const PackedCodes& part, int64_t p, int64_t column, int64_t first_row, int64_t end_row) {
    QuantizedTile tile;
    tile.x_stride = weight_.in_features();
    tile.groups_stride = num_groups_;
    tile.num_segments = weight_.num_segments();
    tile.y_stride = weight_.out_features();
    tile.columns = static_cast<int>(std::min<int64_t>(part.rows - p * part.lanes, part.lanes));
    tile.bias = weight_.bias() == nullptr ? nullptr : weight_.bias() + column;
    const int64_t num_rows = end_row - first_row;
    const int64_t num_tiles = DivCeil(num_rows, int64_t{kernels_.max_rows});
    for (int64_t i = 0; i < num_tiles; ++i) {  // equal tiles: 8 rows are 4 + 4, not 6 + 2
      const int64_t row = first_row + num_rows * i / num_tiles;
      tile.rows = static_cast<int>(first_row + num_rows * (i + 1) / num_tiles - row);
      if (input_type_ == InputType::kInt8) {
        tile.x = codes_ + row * tile.x_stride;
        tile.x_scales = scales_ + row * num_groups_;
        tile.x_sums = sums_ + 2 * row * num_groups_;
      } else {
        tile.x_f32 = static_cast<const float*>(params_.x) + row * tile.x_stride;
      }
      tile.y = static_cast<float*>(params_.y) + row * tile.y_stride + column;
      kernels_.multiply(part, tile, part.data + p * part.panel_bytes);
    }
  }

  const LinearParams& params_;
  const InputType input_type_;
  const CpuQuantizedLinear& weight_;
  const QuantizedKernels& kernels_;
  ThreadTeam& team_;
  int64_t num_groups_ = 0;
  // Rounded inputs of all rows: x_scales, x_sums and x of QuantizedTile.
  float* scales_ = nullptr;
  int32_t* sums_ = nullptr;
  int8_t* codes_ = nullptr;
};

// Reads rows of one part and packs them. One object serves one task.
class PartPacker {
 public:
  PartPacker(const LinearSource& source, size_t part, PackedCodes& matrix)
      : source_(source), part_(part), matrix_(matrix) {}

  // REQUIRES: first_row is a multiple of the matrix's `lanes`.
  absl::Status Pack(int64_t first_row, int64_t num_rows) {
    QUIRE_ASSIGN_OR_RETURN(const MatrixView stored, Read(first_row, num_rows));
    MatrixView rows = stored;
    if (stored.format != matrix_.format) {
      QUIRE_ASSIGN_OR_RETURN(rows, Round(stored));
    }
    for (int64_t row = 0; row < num_rows; row += matrix_.lanes) {
      MatrixView of_panel = rows;
      of_panel.rows = std::min<int64_t>(matrix_.lanes, num_rows - row);
      of_panel.data = static_cast<const std::byte*>(rows.data) + row * RowBytes(rows);
      matrix_.PackPanel(of_panel, (first_row + row) / matrix_.lanes);
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<MatrixView> Read(int64_t first_row, int64_t num_rows) {
    MatrixView rows = source_.parts[part_];
    rows.rows = num_rows;
    const int64_t row_bytes = RowBytes(rows);
    if (source_.reader == nullptr) {
      rows.data = static_cast<const std::byte*>(rows.data) + first_row * row_bytes;
      return rows;
    }
    read_.resize(static_cast<size_t>(num_rows * row_bytes));
    QUIRE_RETURN_IF_ERROR(source_.reader->Read(part_, first_row, read_));
    rows.data = read_.data();
    return rows;
  }

  // Rounds unquantized rows to the matrix's format. Errors: kInvalidArgument, reason MODEL_FILE.
  absl::StatusOr<MatrixView> Round(const MatrixView& stored) {
    MatrixView rows = stored;
    rows.format = matrix_.format;
    const auto from_bytes = static_cast<size_t>(RowBytes(stored));
    const auto to_bytes = static_cast<size_t>(RowBytes(rows));
    rounded_.resize(static_cast<size_t>(rows.rows) * to_bytes);
    std::vector<float> weights(static_cast<size_t>(rows.cols));
    const auto* const from = static_cast<const std::byte*>(stored.data);
    for (size_t row = 0; row < static_cast<size_t>(rows.rows); ++row) {
      Dequantize(stored.format, {from + row * from_bytes, from_bytes}, weights);
      Quantize(rows.format, weights, std::span(rounded_).subspan(row * to_bytes, to_bytes));
    }
    if (FirstNotFiniteBlock(rows.format, rounded_).has_value()) {
      return InvalidArgument("MODEL_FILE",
                             "weights: a weight is not finite, or too large for 16-bit scales");
    }
    rows.data = rounded_.data();
    return rows;
  }

  const LinearSource& source_;
  const size_t part_;
  PackedCodes& matrix_;
  std::vector<std::byte> read_;
  std::vector<std::byte> rounded_;
};

// Returns the part's view with the format that the part is packed in.
MatrixView PackedView(const MatrixView& part, WeightFormat rounded) {
  MatrixView view = part;
  view.format = IsQuantized(part.format) ? part.format : rounded;
  return view;
}

}  // namespace

void QuantizedLinear(const LinearParams& params,
                     InputType input_type,
                     const QuantizedKernels& kernels,
                     ThreadTeam& team) {
  Product(params, input_type, kernels, team).Run();
}

CpuQuantizedLinear::CpuQuantizedLinear(const LinearSource& source, int lanes, WeightFormat rounded)
    : in_features_(source.parts.front().cols),
      num_segments_(static_cast<int>(source.num_segments)),
      bias_(source.bias.begin(), source.bias.end()) {
  for (const MatrixView& part : source.parts) {
    out_features_ += part.rows;
    parts_.emplace_back(PackedView(part, rounded), lanes);
  }
}

std::optional<int64_t> CpuQuantizedLinear::BytesFor(const LinearSource& source,
                                                    int lanes,
                                                    WeightFormat rounded) {
  int64_t bytes = 0;
  for (const MatrixView& part : source.parts) {
    const std::optional<int64_t> of_part = PackedCodes(PackedView(part, rounded), lanes).NumBytes();
    const std::optional<int64_t> sum = of_part ? CheckedAdd(bytes, *of_part) : std::nullopt;
    if (!sum) {
      return std::nullopt;
    }
    bytes = *sum;
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<CpuQuantizedLinear>> CpuQuantizedLinear::Pack(
    const LinearSource& source,
    int lanes,
    HugeArena& arena,
    ThreadTeam& team,
    WeightFormat rounded) {
  QUIRE_RETURN_IF_ERROR(CheckLinearSource(source).status());
  for (const MatrixView& part : source.parts) {
    if (part.cols % kGroupWeights != 0 || part.skipped_cols % kGroupWeights != 0) {
      return InvalidArgument(
          "LINEAR_SHAPE",
          "weights: a quantized matrix needs columns in whole groups of 32, on each rank (got " +
              std::to_string(part.cols) + ")");
    }
  }
  auto packed = std::unique_ptr<CpuQuantizedLinear>(new CpuQuantizedLinear(source, lanes, rounded));
  const std::optional<int64_t> bytes = BytesFor(source, lanes, rounded);
  if (bytes) {
    packed->data_ = arena.Take(static_cast<size_t>(*bytes));
  }
  if (packed->data_ == nullptr) {
    return Error(absl::StatusCode::kResourceExhausted,
                 "MEMORY",
                 "weights: no memory for a quantized matrix of " +
                     std::to_string(packed->out_features_) + " x " +
                     std::to_string(packed->in_features_));
  }
  packed->bytes_ = *bytes;
  auto* data = reinterpret_cast<uint8_t*>(packed->data_.get());
  for (size_t part = 0; part < packed->parts_.size(); ++part) {
    packed->parts_[part].data = data;
    data += *packed->parts_[part].NumBytes();
    QUIRE_RETURN_IF_ERROR(packed->PackPanels(source, part, team));
  }
  return packed;
}

absl::Status CpuQuantizedLinear::PackPanels(const LinearSource& source,
                                            size_t part,
                                            ThreadTeam& team) {
  // A task packs about 1 MiB of the source, but at least one panel.
  constexpr int64_t kTaskBytes = int64_t{1} << 20;
  PackedCodes& matrix = parts_[part];
  const int64_t panel_bytes = matrix.lanes * RowBytes(source.parts[part]);
  const int64_t rows_per_task = matrix.lanes * std::max<int64_t>(kTaskBytes / panel_bytes, 1);
  std::vector<absl::Status> errors(static_cast<size_t>(team.num_threads()));
  team.ParallelFor(DivCeil(matrix.rows, rows_per_task), [&](int64_t task, int thread) {
    absl::Status& error = errors[static_cast<size_t>(thread)];
    const int64_t first = task * rows_per_task;
    if (error.ok()) {
      error = PartPacker(source, part, matrix)
                  .Pack(first, std::min(rows_per_task, matrix.rows - first));
    }
  });
  for (const absl::Status& error : errors) {
    QUIRE_RETURN_IF_ERROR(error);
  }
  return absl::OkStatus();
}

void CpuQuantizedLinear::WidenRow(int64_t row, float* out) const {
  for (const PackedCodes& part : parts_) {
    if (row < part.rows) {
      part.WidenRow(row, out);
      return;
    }
    row -= part.rows;
  }
}

}  // namespace quire
