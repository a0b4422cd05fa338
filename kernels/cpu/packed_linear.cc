#include "kernels/cpu/packed_linear.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "common/base/error.h"
#include "common/base/math.h"
#include "common/base/status_macros.h"
#include "kernels/api/linear_source.h"
#include "kernels/api/row_reader.h"
#include "kernels/cpu/simd_portable.h"
#include "kernels/cpu/turn_rows.h"

namespace quire {
namespace {

// Returns the dtype of the panels: that of the parts if all parts have the same dtype, else fp32.
DType DTypeOf(const LinearSource& source) {
  const WeightFormat first = source.parts.front().format;
  for (const MatrixView& part : source.parts) {
    if (part.format != first) {
      return DType::kF32;
    }
  }
  return PlainTypeOf(first);
}

float WidenOne(const std::byte* p, DType dtype) {
  switch (dtype) {
    case DType::kF32: {
      float value = 0.0F;
      std::memcpy(&value, p, sizeof(value));
      return value;
    }
    case DType::kF16: {
      Float16 value{};
      std::memcpy(&value, p, sizeof(value));
      return SimdPortable::LoadN(&value, 1)[0];
    }
    case DType::kBF16: {
      BFloat16 value{};
      std::memcpy(&value, p, sizeof(value));
      return SimdPortable::LoadN(&value, 1)[0];
    }
    case DType::kF8E4M3:  // loaded weights never have these two types
    case DType::kInt8:
      break;
  }
  return 0.0F;
}

// Transposes bf16 rows. Two adjacent numbers of a row stay side by side, as one 32-bit element of
// the transpose. If `length` is odd, a row's last number is paired with a zero that ZeroFiller has
// written.
void TransposePairs(const RowsToTurn& rows, int64_t length, std::byte* to, int64_t stride) {
  constexpr int64_t kPairBytes = 2 * sizeof(BFloat16);
  const int64_t pairs = length / 2;
  TransposeRows(rows, pairs, reinterpret_cast<uint32_t*>(to), stride);
  if (length % 2 != 0) {
    std::byte* const last = to + pairs * stride * kPairBytes;
    for (int64_t row = 0; row < rows.count; ++row) {
      std::memcpy(last + row * kPairBytes,
                  rows.first + row * rows.stride_bytes + pairs * kPairBytes,
                  sizeof(BFloat16));
    }
  }
}

void WidenRows(const RowsToTurn& rows, DType from, int64_t length, float* to, int64_t stride) {
  for (int64_t row = 0; row < rows.count; ++row) {
    const std::byte* const values = rows.first + row * rows.stride_bytes;
    for (int64_t k = 0; k < length; ++k) {
      to[k * stride + row] = WidenOne(values + k * SizeOf(from), from);
    }
  }
}

// Widens one column of a panel along one segment of k: `length` values, the first at `from`. The
// panel has `columns` columns.
template <DType kType>
void WidenColumn(const std::byte* from, int64_t columns, int64_t length, float* out) {
  constexpr int64_t kGroup = kType == DType::kBF16 ? 2 : 1;
  for (int64_t k = 0; k < length; ++k) {
    const int64_t at = k / kGroup * columns * kGroup + k % kGroup;
    out[k] = WidenOne(from + at * SizeOf(kType), kType);
  }
}

// Reserves scratch memory for the rows that RowsOf reads. Otherwise a lack of memory would
// end the process (ThreadTeam::Scratch) instead of returning an error.
absl::Status ReserveRows(const LinearSource& source, int64_t panel, ThreadTeam& team) {
  int64_t max_bytes = 0;
  for (const MatrixView& part : source.parts) {
    max_bytes = std::max(max_bytes, std::min(panel, part.rows) * RowBytes(part));
  }
  if (source.reader == nullptr || team.ReserveScratch(static_cast<size_t>(max_bytes))) {
    return absl::OkStatus();
  }
  return Error(absl::StatusCode::kResourceExhausted,
               "MEMORY",
               "weights: no memory to read rows of a matrix (need " + std::to_string(max_bytes) +
                   " bytes on each of " + std::to_string(team.num_threads()) + " threads)");
}

// Returns a view of num_rows rows of a part, from first_row on. If the source has a reader, reads
// the rows into the thread's scratch memory. Otherwise the view points into the part's own memory.
absl::StatusOr<MatrixView> RowsOf(const LinearSource& source,
                                  size_t part,
                                  int64_t first_row,
                                  int64_t num_rows,
                                  ThreadTeam& team,
                                  int thread) {
  MatrixView rows = source.parts[part];
  rows.rows = num_rows;
  const int64_t row_bytes = RowBytes(rows);
  if (source.reader == nullptr) {
    rows.data = static_cast<const std::byte*>(rows.data) + first_row * row_bytes;
    return rows;
  }
  const auto bytes = static_cast<size_t>(num_rows * row_bytes);
  auto* const buffer = static_cast<std::byte*>(team.Scratch(thread, bytes));
  QUIRE_RETURN_IF_ERROR(source.reader->Read(part, first_row, std::span(buffer, bytes)));
  rows.data = buffer;
  return rows;
}

}  // namespace

CpuPackedLinear::CpuPackedLinear(const LinearSource& source, PanelShape shape)
    : in_features_(source.parts.front().cols),
      dtype_(DTypeOf(source)),
      shape_(shape),
      num_segments_(static_cast<int>(source.num_segments)),
      bias_(source.bias.begin(), source.bias.end()) {
  for (const MatrixView& part : source.parts) {
    out_features_ += part.rows;
  }
  if (dtype_ == DType::kBF16 && shape.bf16_panel > 0) {
    shape_.panel = shape.bf16_panel;
  }
  num_panels_ = DivCeil(out_features_, shape_.panel);
  padded_segment_length_ = RoundUp(segment_length(), dtype_ == DType::kBF16 ? shape.bf16_group : 1);
}

std::optional<int64_t> CpuPackedLinear::WantedBytes() const {
  const std::optional<int64_t> elements =
      CheckedMultiply(RoundUp(out_features_, shape_.lanes), num_segments_ * padded_segment_length_);
  return elements ? CheckedMultiply(*elements, SizeOf(dtype_)) : std::nullopt;
}

std::optional<int64_t> CpuPackedLinear::BytesFor(const LinearSource& source, PanelShape shape) {
  return CpuPackedLinear({.parts = source.parts, .num_segments = source.num_segments}, shape)
      .WantedBytes();
}

absl::StatusOr<std::unique_ptr<CpuPackedLinear>> CpuPackedLinear::Pack(const LinearSource& source,
                                                                       PanelShape shape,
                                                                       HugeArena& arena,
                                                                       ThreadTeam& team) {
  QUIRE_ASSIGN_OR_RETURN(const LinearShape matrix, CheckLinearSource(source));
  auto packed = std::unique_ptr<CpuPackedLinear>(new CpuPackedLinear(source, shape));
  const std::optional<int64_t> bytes = packed->WantedBytes();
  if (bytes) {
    packed->data_ = arena.Take(static_cast<size_t>(*bytes));
  }
  if (packed->data_ == nullptr) {
    return Error(absl::StatusCode::kResourceExhausted,
                 "MEMORY",
                 "weights: no memory for a matrix of " + std::to_string(matrix.rows) + " x " +
                     std::to_string(matrix.cols));
  }
  packed->bytes_ = *bytes;
  QUIRE_RETURN_IF_ERROR(packed->PackPanels(source, team));
  return packed;
}

// A task is a run of adjacent panels, so that two threads seldom touch the same new huge page at
// the same time. If they did, each thread would clear a huge page, but only one of these pages
// would be used.
absl::Status CpuPackedLinear::PackPanels(const LinearSource& source, ThreadTeam& team) {
  QUIRE_RETURN_IF_ERROR(ReserveRows(source, shape_.panel, team));
  constexpr int64_t kTaskBytes = int64_t{4} << 20;
  constexpr int64_t kMinTasksPerThread = 4;
  const int64_t most = DivCeil(num_panels_, kMinTasksPerThread * team.num_threads());
  const int64_t panels = std::clamp<int64_t>(kTaskBytes * num_panels_ / bytes_, 1, most);
  std::vector<absl::Status> errors(static_cast<size_t>(team.num_threads()));
  team.ParallelFor(DivCeil(num_panels_, panels), [&](int64_t task, int thread) {
    absl::Status& error = errors[static_cast<size_t>(thread)];
    const int64_t end = std::min((task + 1) * panels, num_panels_);
    for (int64_t p = task * panels; p < end && error.ok(); ++p) {
      error = PackPanel(source, p, team, thread);
    }
  });
  for (const absl::Status& error : errors) {
    QUIRE_RETURN_IF_ERROR(error);
  }
  return absl::OkStatus();
}

int64_t CpuPackedLinear::panel_columns(int64_t p) const {
  const int64_t left = out_features_ - p * shape_.panel;
  return left >= shape_.panel ? shape_.panel : RoundUp(left, shape_.lanes);
}

const std::byte* CpuPackedLinear::panel_data(int64_t p) const {
  return data_.get() + p * shape_.panel * num_segments_ * padded_segment_length_ * SizeOf(dtype_);
}

void CpuPackedLinear::WidenRow(int64_t row, float* out) const {
  const int64_t p = row / shape_.panel;
  const int64_t column = row % shape_.panel;
  const int64_t columns = panel_columns(p);
  const int64_t length = segment_length();
  const int64_t group = dtype_ == DType::kBF16 ? 2 : 1;
  for (int segment = 0; segment < num_segments_; ++segment, out += length) {
    const std::byte* const from =
        panel_data(p) +
        (segment * padded_segment_length_ * columns + group * column) * SizeOf(dtype_);
    switch (dtype_) {
      case DType::kF32:
        WidenColumn<DType::kF32>(from, columns, length, out);
        break;
      case DType::kF16:
        WidenColumn<DType::kF16>(from, columns, length, out);
        break;
      case DType::kBF16:
        WidenColumn<DType::kBF16>(from, columns, length, out);
        break;
      case DType::kF8E4M3:  // loaded weights never have these two types
      case DType::kInt8:
        break;
    }
  }
}

absl::Status CpuPackedLinear::PackPanel(const LinearSource& source,
                                        int64_t p,
                                        ThreadTeam& team,
                                        int thread) {
  const int64_t first = p * shape_.panel;  // row number, counted over all parts
  const int64_t last = first + panel_columns(p);
  ZeroFiller(p);
  int64_t part_begin = 0;
  for (size_t part = 0; part < source.parts.size(); ++part) {
    const int64_t part_end = part_begin + source.parts[part].rows;
    const int64_t begin = std::max(first, part_begin);
    const int64_t end = std::min(last, part_end);
    if (begin < end) {
      QUIRE_ASSIGN_OR_RETURN(const MatrixView rows,
                             RowsOf(source, part, begin - part_begin, end - begin, team, thread));
      PackRows(rows, p, begin - first);
    }
    part_begin = part_end;
  }
  return absl::OkStatus();
}

// Zeroes the elements of panel p that PackRows does not write. If the panel has columns for which
// the source has no row, zeroes the whole panel. Otherwise zeroes only the end of each segment, to
// save time: the padding and, if the length is odd, the last pair of bf16 values.
void CpuPackedLinear::ZeroFiller(int64_t p) {
  auto* const panel = const_cast<std::byte*>(panel_data(p));
  const int64_t columns = panel_columns(p);
  const int64_t row_bytes = columns * SizeOf(dtype_);  // bytes for one value of k
  const bool has_filler_columns = p * shape_.panel + columns > out_features_;
  const int64_t group = dtype_ == DType::kBF16 ? 2 : 1;
  const int64_t kept = has_filler_columns ? 0 : segment_length() / group * group;
  for (int segment = 0; segment < num_segments_; ++segment) {
    const int64_t begin = segment * padded_segment_length_ + kept;
    std::memset(panel + begin * row_bytes,
                0,
                static_cast<size_t>((padded_segment_length_ - kept) * row_bytes));
  }
}

void CpuPackedLinear::PackRows(const MatrixView& view, int64_t p, int64_t column) {
  const int64_t columns = panel_columns(p);
  const DType from_dtype = PlainTypeOf(view.format);
  const int64_t from_size = SizeOf(from_dtype);
  for (int segment = 0; segment < num_segments_; ++segment) {
    const RowsToTurn rows = {
        .first = static_cast<const std::byte*>(view.data) + segment * segment_length() * from_size,
        .stride_bytes = view.cols * from_size,
        .count = view.rows};
    const int64_t group = dtype_ == DType::kBF16 ? 2 : 1;
    auto* const to = const_cast<std::byte*>(panel_data(p)) +
                     (segment * padded_segment_length_ * columns + group * column) * SizeOf(dtype_);
    if (from_dtype != dtype_) {
      WidenRows(rows, from_dtype, segment_length(), reinterpret_cast<float*>(to), columns);
    } else if (dtype_ == DType::kBF16) {
      TransposePairs(rows, segment_length(), to, columns);
    } else if (dtype_ == DType::kF16) {
      TransposeRows(rows, segment_length(), reinterpret_cast<uint16_t*>(to), columns);
    } else {
      TransposeRows(rows, segment_length(), reinterpret_cast<uint32_t*>(to), columns);
    }
  }
}

}  // namespace quire
