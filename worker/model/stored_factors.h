// StoredFactors reads the scales and zeros of a quantized matrix from a model file: one scale and
// one zero per group of weights. Open checks types and shapes; Read reads the factors of some rows.
//
// Thread safety: Read is const and safe from any thread.
// Errors:        kInvalidArgument, reason MODEL_FILE, with the tensor's name; those of
//                RegularFile::ReadAt.
#ifndef QUIRE_WORKER_MODEL_STORED_FACTORS_H_
#define QUIRE_WORKER_MODEL_STORED_FACTORS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/model/quantization_config.h"
#include "worker/model/weight_files.h"
#include "worker/model/weight_layout.h"

namespace quire {

class StoredFactors {
 public:
  // Finds the tensors of a module's matrix [rows, cols].
  static absl::StatusOr<StoredFactors> Open(const WeightFiles& files,
                                            const std::string& module,
                                            const WeightScheme& scheme,
                                            int64_t rows,
                                            int64_t cols);

  int64_t groups() const { return groups_; }  // groups of columns; a row has a scale for each
  // Names of the tensors in the files.
  std::vector<std::string> names() const;

  // Sets scales[rows.count, groups] and, unless codes are floats, zeros of the same shape.
  // Errors: also a scale that is not finite or above 1e30, with which weights could overflow.
  // REQUIRES: rows.begin is a multiple of kStripAlignment.
  absl::Status Read(Slice rows, std::vector<float>& scales, std::vector<int16_t>& zeros) const;

 private:
  // How the file stores scales. kOne: one scale for the matrix. kRows: [rows / group_rows, groups].
  // kTransposed: [groups, rows]. If a scale is for whole rows, the shape of the tensor of scales
  // decides between kOne and kRows.
  enum class Grid : uint8_t { kOne, kRows, kTransposed };

  StoredFactors() = default;

  absl::Status OpenScales(const WeightFiles& files, const std::string& module);
  absl::Status OpenZeros(const WeightFiles& files, const std::string& module);
  absl::Status ReadScales(Slice rows, std::vector<float>& scales) const;
  absl::Status ReadZeros(Slice rows, std::vector<int16_t>& zeros) const;
  int64_t GridRow(int64_t row) const { return grid_ == Grid::kOne ? 0 : row / scheme_.group_rows; }

  WeightScheme scheme_;
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  int64_t groups_ = 1;
  Grid grid_ = Grid::kRows;
  WeightRef scales_;
  WeightRef zeros_;  // null if the matrix is symmetric
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_STORED_FACTORS_H_
