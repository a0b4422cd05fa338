// GpuLinear holds the weights of a linear layer on the device: [out_features, in_features] of the
// activations' type, the parts one below the other, and the bias in the same type.
//
// Thread safety: immutable after Pack.
#ifndef QUIRE_KERNELS_GPU_GPU_LINEAR_H_
#define QUIRE_KERNELS_GPU_GPU_LINEAR_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"

#include "kernels/api/kernel_backend.h"

namespace quire {

class GpuLinear final : public PackedLinear {
 public:
  // Converts to `dtype`, rounding to nearest. Errors: kInvalidArgument, reason LINEAR_SHAPE;
  // kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<PackedLinear>> Pack(const LinearSource& source,
                                                            DType dtype,
                                                            KernelBackend& backend);

  int64_t in_features() const override { return in_features_; }
  int64_t out_features() const override { return out_features_; }
  int64_t bytes() const override {
    return weight_->size_bytes() + (bias_ == nullptr ? 0 : bias_->size_bytes());
  }
  const void* weight() const { return weight_->data(); }
  const void* bias() const { return bias_ == nullptr ? nullptr : bias_->data(); }

 private:
  GpuLinear(int64_t in_features,
            int64_t out_features,
            std::unique_ptr<DeviceMemory> weight,
            std::unique_ptr<DeviceMemory> bias)
      : in_features_(in_features),
        out_features_(out_features),
        weight_(std::move(weight)),
        bias_(std::move(bias)) {}

  int64_t in_features_;
  int64_t out_features_;
  std::unique_ptr<DeviceMemory> weight_;
  std::unique_ptr<DeviceMemory> bias_;  // or null
};

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_GPU_LINEAR_H_
