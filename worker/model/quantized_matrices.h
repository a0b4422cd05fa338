// QuantizedMatrices holds the quantized matrices of a model directory, by tensor name in the
// WeightLayout ("model.layers.0.mlp.up_proj.weight").
//
// If the files store a module's weight unquantized, the module counts as not quantized, even if
// quantization_config does not list the module as ignored: many published lists are incomplete.
//
// Thread safety: a value type; const functions are safe from any thread.
#ifndef QUIRE_WORKER_MODEL_QUANTIZED_MATRICES_H_
#define QUIRE_WORKER_MODEL_QUANTIZED_MATRICES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "common/model/quantization_config.h"
#include "worker/model/quantized_matrix.h"
#include "worker/model/weight_files.h"
#include "worker/model/weight_layout.h"

namespace quire {

class QuantizedMatrices {
 public:
  // Checks all tensors of all quantized matrices of the layout. The files must outlive the object.
  // Errors: those of QuantizedMatrix::Open; also if quantization_config leaves out a matrix
  // that is quantized, or if a bias that the layout lacks is not all zeros.
  static absl::StatusOr<QuantizedMatrices> Open(const QuantizationConfig& config,
                                                const WeightLayout& layout,
                                                const WeightFiles& files);

  // Returns nullptr if the tensor is not quantized.
  const QuantizedMatrix* Find(const std::string& tensor) const;

  bool empty() const { return matrices_.empty(); }
  int64_t num_matrices() const { return static_cast<int64_t>(matrices_.size()); }
  // Names and total bytes of all tensors in the files that belong to the matrices.
  const std::vector<std::string>& names() const { return names_; }
  int64_t file_bytes() const { return file_bytes_; }
  // Bytes of all matrices as bf16.
  int64_t decoded_bytes() const;

 private:
  absl::Status Add(const QuantizationConfig& config,
                   const TensorGroup& group,
                   const TensorShape& tensor,
                   const WeightFiles& files);

  std::map<std::string, QuantizedMatrix, std::less<>> matrices_;
  std::vector<std::string> names_;
  int64_t file_bytes_ = 0;
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_QUANTIZED_MATRICES_H_
