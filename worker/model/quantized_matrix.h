// QuantizedMatrix is a quantized matrix [rows, cols] in the files of a model directory: codes,
// scales, zeros and groups of columns, as quantization_config says.
//
// Thread safety: const functions are safe from any thread.
// Errors:        kInvalidArgument, reason MODEL_FILE, with the tensor's name; those of
//                RegularFile::ReadAt.
// Cost:          Open reads at most two numbers, those of weight_shape.
#ifndef QUIRE_WORKER_MODEL_QUANTIZED_MATRIX_H_
#define QUIRE_WORKER_MODEL_QUANTIZED_MATRIX_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/model/quantization_config.h"
#include "worker/model/stored_factors.h"
#include "worker/model/weight_files.h"
#include "worker/model/weight_layout.h"
#include "worker/model/weight_strip.h"

namespace quire {

class QuantizedMatrix {
 public:
  // Returns a tensor that the files have only if the module's matrix is quantized: its codes,
  // scales, zeros, shape or group index. Returns null pointers if the matrix is unquantized or
  // missing.
  static WeightRef FindIn(const WeightFiles& files, const std::string& module);

  // Checks the types and shapes of all tensors of the module's matrix.
  static absl::StatusOr<QuantizedMatrix> Open(const WeightFiles& files,
                                              const std::string& module,
                                              const WeightScheme& scheme,
                                              int64_t rows,
                                              int64_t cols);

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  // Names of all tensors in the files that belong to the matrix, including tensors that Load never
  // reads.
  std::vector<std::string> names() const;

  // Returns the number of rows that a strip of num_cols columns should have, a multiple of
  // kStripAlignment. A strip of a transposed tensor (HasWordsAcrossRows) needs a read for every one
  // to eight columns, so such a strip is larger: several megabytes.
  int64_t StripRows(int64_t num_cols) const;

  // Reads a part of the matrix. Errors: also a scale that is not finite, a code that is NaN, and a
  // column whose group does not exist. REQUIRES: rows.begin is a multiple of kStripAlignment.
  absl::StatusOr<WeightStrip> Load(Slice rows, Slice cols) const;

 private:
  explicit QuantizedMatrix(const StoredFactors& factors) : factors_(factors) {}

  absl::Status OpenCodes(const WeightFiles& files, const std::string& module);
  absl::Status OpenGroupIndex(const WeightFiles& files, const std::string& module);
  absl::StatusOr<std::vector<WeightStrip::Run>> Runs(Slice cols) const;

  WeightScheme scheme_;
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  StoredFactors factors_;
  WeightRef codes_;
  WeightRef group_index_;                       // null: groups are adjacent columns
  std::vector<std::string> names_without_use_;  // weight_shape, scales of activations
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_QUANTIZED_MATRIX_H_
