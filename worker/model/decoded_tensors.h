// DecodedTensors decodes the quantized tensors of a GGUF file to bf16 while they are read, if the
// backend cannot multiply their formats. Rounds to nearest, ties to even.
//
// FindTensorsToDecode chooses these tensors. The matrices of one linear layer (q, k and v; gate and
// up) keep their quantized formats only if all are quantized and the backend can multiply all. A
// token table in main memory keeps any format, unless it is also the output matrix.
//
// Thread safety: Read is safe from any thread.
// Cost:          Read allocates at most 1 MiB besides its output.
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
  int64_t held_bytes = 0;         // bytes of this rank's parts in bf16
  int64_t added_bytes = 0;        // growth of the whole tensors by decoding
};

// Returns the quantized tensors to decode. `layout`: the part of one rank of num_ranks. Errors:
// kInvalidArgument, reason MODEL_FILE, if the rank's columns of a tensor that keeps its format
// begin or end inside a group of kInputGroup weights. REQUIRES: CheckWeightFiles has accepted the
// files.
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
  // Decodes the slices held_rows and held_cols of `piece`. REQUIRES: `out` has their size in bf16.
  absl::Status Decode(const TensorShape& piece, std::span<std::byte> out) const;

  const TensorSource& source_;
  const TensorsToDecode decoded_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_DECODED_TENSORS_H_
