// PartPlaces maps bytes of the part of a tensor that a rank holds to byte offsets in the whole
// tensor. A part consists of whole weight blocks: each block with at least one column of the rank.
// A vector counts as one row; a vector with paired elements (TensorShape::paired_head_rows) counts
// as a matrix of one column.
//
// Thread safety: immutable.
#ifndef QUIRE_WORKER_MODEL_PART_PLACES_H_
#define QUIRE_WORKER_MODEL_PART_PLACES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/api/dense.h"
#include "kernels/api/weight_format.h"
#include "worker/model/weight_layout.h"

namespace quire {

// Returns a view, without data, of the part of the tensor that a rank holds.
inline MatrixView PartOf(const TensorShape& tensor, WeightFormat format) {
  return {
      .data = nullptr,
      .format = format,
      .rows = tensor.held_rows.count,
      .cols = tensor.held_cols.count,
      .skipped_cols = static_cast<int32_t>(tensor.held_cols.begin % InfoOf(format).block_weights)};
}

class PartPlaces {
 public:
  PartPlaces(const TensorShape& tensor, WeightFormat format)
      : paired_rows_(tensor.paired_head_rows) {
    const bool is_column = tensor.rows == 0 && paired_rows_ > 0;
    const WeightFormatInfo& info = InfoOf(format);
    const MatrixView part = PartOf(tensor, format);
    const Slice rows = is_column ? tensor.held_cols : tensor.held_rows;
    first_row_ = rows.begin;
    num_rows_ = rows.count;
    row_bytes_ = is_column ? info.block_bytes : RowBytes(part);
    file_row_bytes_ =
        is_column ? info.block_bytes : RowBytes({.format = format, .cols = tensor.cols});
    row_begin_ = is_column ? 0 : tensor.held_cols.begin / info.block_weights * info.block_bytes;
    begins_inside_block_ = part.skipped_cols != 0;
  }

  // Splits `out`, which begins at byte `begin` of the part, into runs that are contiguous in the
  // whole tensor. Calls fn(offset in bytes in the whole tensor, run) for each run. If rows are
  // whole and in order, `out` is a single run; else a run lies within one row.
  template <typename Fn>
  void ForEachRun(int64_t begin, std::span<std::byte> out, const Fn& fn) const {
    const bool is_one_run =
        row_bytes_ == file_row_bytes_ && !begins_inside_block_ && paired_rows_ == 0;
    const int64_t run_bytes = is_one_run ? num_rows_ * row_bytes_ : row_bytes_;
    while (!out.empty()) {
      const int64_t row = RowInFile(first_row_ + begin / run_bytes);
      const int64_t in_run = begin % run_bytes;
      const int64_t bytes = std::min(run_bytes - in_run, static_cast<int64_t>(out.size()));
      fn(row * file_row_bytes_ + row_begin_ + in_run, out.first(static_cast<size_t>(bytes)));
      out = out.subspan(static_cast<size_t>(bytes));
      begin += bytes;
    }
  }

  // Returns true if the block at this offset of the whole tensor is the first in its row of the
  // part, and the part's first column is not the block's first.
  bool BeginsInsideBlock(int64_t offset) const {
    return begins_inside_block_ && offset % file_row_bytes_ == row_begin_;
  }

  int64_t RowAt(int64_t offset) const { return offset / file_row_bytes_; }

 private:
  int64_t RowInFile(int64_t row) const {
    if (paired_rows_ == 0) {
      return row;
    }
    const int64_t in_head = row % paired_rows_;
    const int64_t half = paired_rows_ / 2;
    return row - in_head + 2 * (in_head % half) + in_head / half;
  }

  int32_t paired_rows_;
  int64_t first_row_ = 0;
  int64_t num_rows_ = 0;
  int64_t row_bytes_ = 0;       // bytes of a row of the part
  int64_t file_row_bytes_ = 0;  // bytes of a row of the whole tensor
  int64_t row_begin_ = 0;       // offset of the part in a row of the whole tensor
  bool begins_inside_block_ = false;
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_PART_PLACES_H_
