// TensorSource provides a model's weights, from files or from a seed.
//
// Thread safety: Read is safe from any thread.
#ifndef QUIRE_WORKER_MODEL_TENSOR_SOURCE_H_
#define QUIRE_WORKER_MODEL_TENSOR_SOURCE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"

#include "common/model/dtype.h"
#include "kernels/api/weight_format.h"
#include "worker/model/part_places.h"
#include "worker/model/weight_files.h"
#include "worker/model/weight_layout.h"

namespace quire {

class TensorSource {
 public:
  // Bytes that one thread reads at a time: enough to keep a disk busy, and few enough to divide a
  // tensor among the threads.
  static constexpr int64_t kPieceBytes = int64_t{8} << 20;

  virtual ~TensorSource() = default;

  // Totals for a progress bar; 0 if unknown.
  virtual int64_t num_tensors() const = 0;
  virtual int64_t num_bytes() const = 0;

  virtual WeightFormat format(const std::string& name) const = 0;

  // WeightsSum of the bytes read so far; 0 if the source computes no checksum.
  virtual uint64_t weights_sum() const { return 0; }

  // Fills `out` from the part of the tensor that this rank holds (held_rows, held_cols), starting
  // at byte `begin` of the part. The part is row-major, with rows as PartOf describes them.
  // Errors: those of RegularFile::ReadAt; a scale of quantized weights is not finite. REQUIRES:
  // `begin` and `out` are whole weight blocks.
  virtual absl::Status Read(const TensorShape& tensor,
                            int64_t begin,
                            std::span<std::byte> out) const = 0;
};

// Returns the size in bytes of the part of the tensor that this rank holds, in the source's format.
inline int64_t BytesOf(const TensorShape& tensor, const TensorSource& source) {
  const MatrixView part = PartOf(tensor, source.format(tensor.name));
  return part.rows * RowBytes(part);
}

// Provides the tensors of files. REQUIRES: every tensor that a caller reads is in the files and has
// a WeightFormat.
class FileTensors final : public TensorSource {
 public:
  // The files must outlive the source. not_counted: names of tensors that add nothing to
  // weights_sum, because another rank counts the same part of these tensors. If two ranks read the
  // same weight block, the rank that reads the block's first column counts it.
  explicit FileTensors(const WeightFiles& files, std::set<std::string> not_counted = {})
      : files_(files), not_counted_(std::move(not_counted)) {}

  int64_t num_tensors() const override { return static_cast<int64_t>(files_.tensors().size()); }
  int64_t num_bytes() const override;
  WeightFormat format(const std::string& name) const override;
  uint64_t weights_sum() const override { return sum_.load(std::memory_order_relaxed); }
  absl::Status Read(const TensorShape& tensor,
                    int64_t begin,
                    std::span<std::byte> out) const override;

 private:
  const WeightRef& WeightOf(const std::string& name) const {
    return files_.tensors().find(name)->second;
  }

  const WeightFiles& files_;
  const std::set<std::string> not_counted_;
  mutable std::atomic<uint64_t> sum_ = 0;  // atomic: several threads call Read
};

// Provides random weights, computed from a seed and the tensor's name, for benchmarks without
// weight files. Elements of matrices are uniformly distributed with variance 1 / cols, so that
// activations neither grow nor vanish. Norm weights are 1, biases 0.
class DummyTensors final : public TensorSource {
 public:
  // dtype: bf16 or f16.
  DummyTensors(DType dtype, uint64_t seed) : dtype_(dtype), seed_(seed) {}

  int64_t num_tensors() const override { return 0; }
  int64_t num_bytes() const override { return 0; }
  WeightFormat format(const std::string& /*name*/) const override { return FormatOf(dtype_); }
  absl::Status Read(const TensorShape& tensor,
                    int64_t begin,
                    std::span<std::byte> out) const override;

 private:
  const DType dtype_;
  const uint64_t seed_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_TENSOR_SOURCE_H_
