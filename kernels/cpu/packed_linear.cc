#include "kernels/cpu/packed_linear.h"

#include <cstring>
#include <optional>
#include <string>

#include "common/base/error.h"
#include "common/base/math.h"
#include "common/base/status_macros.h"
#include "kernels/api/linear_source.h"
#include "kernels/cpu/simd_portable.h"

namespace quire {
namespace {

// Of the panels: that of the parts where they agree.
DType DTypeOf(const LinearSource& source) {
  const DType first = source.parts.front().dtype;
  for (const MatrixView& part : source.parts) {
    if (part.dtype != first) {
      return DType::kF32;
    }
  }
  return first;
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
    case DType::kF8E4M3:  // no types of a weight file that is loaded
    case DType::kInt8:
      break;
  }
  return 0.0F;
}

// The sources may be unaligned (a file in memory), the panels are not.
template <typename T>
void CopyColumn(const std::byte* from, int64_t count, T* to, int64_t stride) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * stride, from + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  }
}

void CopyPairs(const std::byte* from, int64_t count, BFloat16* to, int64_t stride) {
  constexpr int64_t kPairBytes = 2 * sizeof(BFloat16);
  for (int64_t i = 0; i < count / 2; ++i) {
    std::memcpy(to + i * stride, from + i * kPairBytes, kPairBytes);
  }
  if (count % 2 != 0) {
    std::memcpy(to + count / 2 * stride, from + count / 2 * kPairBytes, sizeof(BFloat16));
  }
}

void WidenColumn(const std::byte* from, DType dtype, int64_t count, float* to, int64_t stride) {
  for (int64_t i = 0; i < count; ++i) {
    to[i * stride] = WidenOne(from + i * SizeOf(dtype), dtype);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuPackedLinear>> CpuPackedLinear::Pack(const LinearSource& source,
                                                                       PanelShape shape,
                                                                       HugeArena& arena,
                                                                       ThreadTeam& team) {
  QUIRE_ASSIGN_OR_RETURN(const LinearShape matrix, CheckLinearSource(source));
  auto packed = std::unique_ptr<CpuPackedLinear>(new CpuPackedLinear);
  packed->in_features_ = matrix.cols;
  packed->out_features_ = matrix.rows;
  packed->dtype_ = DTypeOf(source);
  packed->shape_ = shape;
  packed->num_panels_ = DivCeil(matrix.rows, shape.panel);
  packed->num_segments_ = static_cast<int>(source.num_segments);
  const int64_t group = packed->dtype_ == DType::kBF16 ? shape.bf16_group : 1;
  packed->padded_segment_length_ = RoundUp(packed->segment_length(), group);

  const int64_t depth = packed->num_segments_ * packed->padded_segment_length_;
  const std::optional<int64_t> elements = CheckedMultiply(RoundUp(matrix.rows, shape.lanes), depth);
  const std::optional<int64_t> bytes =
      elements ? CheckedMultiply(*elements, SizeOf(packed->dtype_)) : std::nullopt;
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
  packed->bias_.assign(source.bias.begin(), source.bias.end());
  team.ParallelFor(packed->num_panels_,
                   [&](int64_t p, int /*thread*/) { packed->PackPanel(source, p); });
  return packed;
}

int64_t CpuPackedLinear::panel_columns(int64_t p) const {
  const int64_t left = out_features_ - p * shape_.panel;
  return left >= shape_.panel ? shape_.panel : RoundUp(left, shape_.lanes);
}

const std::byte* CpuPackedLinear::panel_data(int64_t p) const {
  return data_.get() + p * shape_.panel * num_segments_ * padded_segment_length_ * SizeOf(dtype_);
}

void CpuPackedLinear::PackPanel(const LinearSource& source, int64_t p) {
  auto* begin = const_cast<std::byte*>(panel_data(p));
  const int64_t columns = panel_columns(p);
  std::memset(
      begin,
      0,
      static_cast<size_t>(columns * num_segments_ * padded_segment_length_ * SizeOf(dtype_)));
  int64_t first_row = 0;  // of the part, in the concatenation
  for (const MatrixView& part : source.parts) {
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t row = p * shape_.panel + column - first_row;
      if (row >= 0 && row < part.rows) {
        const auto* data = static_cast<const std::byte*>(part.data);
        PackColumn(data + row * part.cols * SizeOf(part.dtype), part.dtype, p, column);
      }
    }
    first_row += part.rows;
  }
}

void CpuPackedLinear::PackColumn(const std::byte* row, DType from, int64_t p, int64_t column) {
  auto* panel = const_cast<std::byte*>(panel_data(p));
  const int64_t columns = panel_columns(p);
  const int64_t from_size = SizeOf(from);
  for (int segment = 0; segment < num_segments_; ++segment) {
    const int64_t depth = segment * padded_segment_length_;
    const std::byte* values = row + segment * segment_length() * from_size;
    if (from != dtype_) {
      WidenColumn(values,
                  from,
                  segment_length(),
                  reinterpret_cast<float*>(panel) + depth * columns + column,
                  columns);
    } else if (from == DType::kBF16) {
      CopyPairs(values,
                segment_length(),
                reinterpret_cast<BFloat16*>(panel) + depth * columns + 2 * column,
                2 * columns);
    } else if (from == DType::kF16) {
      CopyColumn(values,
                 segment_length(),
                 reinterpret_cast<Float16*>(panel) + depth * columns + column,
                 columns);
    } else {
      CopyColumn(values,
                 segment_length(),
                 reinterpret_cast<float*>(panel) + depth * columns + column,
                 columns);
    }
  }
}

}  // namespace quire
