// DecodedTensors decodes quantized tensors to bf16 as they are read, for backends that cannot
// multiply their format. Rounds to nearest, ties to even.
//
// FindTensorsToDecode decides which tensors these are. The matrices of one linear layer (q, k and
// v; gate and up) keep their formats only if all of them can. A table that tokens are looked up in
// keeps any format in main memory.
//
// Thread safety: Read is safe from any thread.
// Cost:          Read takes at most 1 MiB beside its output.
#ifndef QUIRE_WORKER_MODEL_DECODED_TENSORS_H_
#define QUIRE_WORKER_MODEL_DECODED_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/api/kernel_backend.h"
#include "worker/model/tensor_source.h"
#include "worker/model/weight_files.h"
#include "worker/model/weight_layout.h"

namespace quire {

struct TensorsToDecode {
  std::set<std::string> names;
  std::set<std::string> formats;  // ggml's names
  int64_t held_bytes = 0;         // of the parts that this rank holds, as bf16
  int64_t added_bytes = 0;        // by which decoding makes the whole tensors larger
};

// `layout`: of one rank of num_ranks. Errors: kInvalidArgument, reason MODEL_FILE, if the rank's
// columns of a tensor that keeps its format begin or end inside a group of kInputGroup weights.
// REQUIRES: CheckWeightFiles has accepted the files.
absl::StatusOr<TensorsToDecode> FindTensorsToDecode(const WeightLayout& layout,
                                                    int32_t num_ranks,
                                                    const WeightFiles& files,
                                                    const KernelBackend& backend);

class DecodedTensors final : public TensorSource {
 public:
  // The source must outlive the object.
  DecodedTensors(const TensorSource& source, TensorsToDecode decoded)
      : source_(source), decoded_(std::move(decoded)) {}

  int64_t num_tensors() const override { return source_.num_tensors(); }
  int64_t num_bytes() const override { return source_.num_bytes() + decoded_.added_bytes; }
  WeightFormat format(const std::string& name) const override {
    return decoded_.names.contains(name) ? WeightFormat::kBF16 : source_.format(name);
  }
  uint64_t weights_sum() const override { return source_.weights_sum(); }
  absl::Status Read(const TensorShape& tensor,
                    int64_t begin,
                    std::span<std::byte> out) const override;

 private:
  // Decodes the part of the tensor that `piece` holds. REQUIRES: `out` has its size.
  absl::Status Decode(const TensorShape& piece, std::span<std::byte> out) const;

  const TensorSource& source_;
  const TensorsToDecode decoded_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_DECODED_TENSORS_H_
