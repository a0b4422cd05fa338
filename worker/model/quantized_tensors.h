// QuantizedTensors is a TensorSource that decodes quantized matrices of a model directory to bf16
// while they are read. It reads every other tensor from another source.
//
// Thread safety: Read is safe from any thread.
// Cost:          memory: that of StripCache.
#ifndef QUIRE_WORKER_MODEL_QUANTIZED_TENSORS_H_
#define QUIRE_WORKER_MODEL_QUANTIZED_TENSORS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"

#include "worker/model/quantized_matrices.h"
#include "worker/model/strip_cache.h"
#include "worker/model/tensor_source.h"

namespace quire {

class QuantizedTensors final : public TensorSource {
 public:
  // `others` and `matrices` must outlive the source. `others` provides the tensors that are not
  // quantized; its num_tensors and num_bytes cover all tensors of the files. not_counted: as in
  // FileTensors.
  QuantizedTensors(const TensorSource& others,
                   const QuantizedMatrices& matrices,
                   std::set<std::string> not_counted)
      : others_(others), matrices_(matrices), not_counted_(std::move(not_counted)) {}

  int64_t num_tensors() const override;
  int64_t num_bytes() const override;
  WeightFormat format(const std::string& name) const override;
  // For quantized matrices, sums the decoded weights and not the bytes of the files: a word of a
  // file can hold weights of two ranks.
  uint64_t weights_sum() const override;
  absl::Status Read(const TensorShape& tensor,
                    int64_t begin,
                    std::span<std::byte> out) const override;

 private:
  absl::StatusOr<StripCache::StripPtr> StripAt(const QuantizedMatrix& matrix,
                                               const TensorShape& tensor,
                                               Slice rows) const;

  const TensorSource& others_;
  const QuantizedMatrices& matrices_;
  const std::set<std::string> not_counted_;
  mutable StripCache strips_;
  mutable std::atomic<uint64_t> sum_ = 0;  // atomic: several threads call Read
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_QUANTIZED_TENSORS_H_
