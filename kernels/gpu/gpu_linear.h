// GpuLinear holds the weights of a linear layer on the device: [out_features, in_features] of the
// activations' type, or of e4m3 with one fp32 scale per row. The parts of the LinearSource, such as
// q, k and v, are stacked by rows. The bias has the activations' type.
//
// Thread safety: immutable after Pack.
#ifndef QUIRE_KERNELS_GPU_GPU_LINEAR_H_
#define QUIRE_KERNELS_GPU_GPU_LINEAR_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"

#include "kernels/api/kernel_backend.h"
#include "kernels/cuda/gpu_api.h"
#include "kernels/gpu/gpu_library.h"

namespace quire {

class GpuLinear final : public PackedLinear {
 public:
  // Converts weights and bias to `dtype`, rounding to nearest. Errors: kInvalidArgument, reason
  // LINEAR_SHAPE; kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<PackedLinear>> Pack(const LinearSource& source,
                                                            DType dtype,
                                                            KernelBackend& backend);

  // PackFp8 quantizes on the device. At most kStagingBytes of the source, or one row if a row has
  // more bytes, are on the device at a time. `dtype` is the bias's type. Errors: those of Pack.
  static constexpr int64_t kStagingBytes = int64_t{16} << 20;
  static absl::StatusOr<std::unique_ptr<PackedLinear>> PackFp8(const LinearSource& source,
                                                               DType dtype,
                                                               const gpu::GpuApi& api,
                                                               gpu::Stream stream,
                                                               KernelBackend& backend);

  // Checks that the device can multiply by PackFp8's weights, with and without a bias, if the
  // outputs have type `dtype`. Errors: kFailedPrecondition, reason DEVICE.
  static absl::Status CheckFp8(const GpuLibrary& library, DType dtype, void* gemm);

  int64_t in_features() const override { return in_features_; }
  int64_t out_features() const override { return out_features_; }
  int64_t bytes() const override {
    return weight_->size_bytes() + (scales_ == nullptr ? 0 : scales_->size_bytes()) +
           (bias_ == nullptr ? 0 : bias_->size_bytes());
  }
  const void* weight() const { return weight_->data(); }
  // fp32 [out_features] if the weights are e4m3; else null.
  const float* scales() const {
    return scales_ == nullptr ? nullptr : static_cast<const float*>(scales_->data());
  }
  const void* bias() const { return bias_ == nullptr ? nullptr : bias_->data(); }

 private:
  GpuLinear(int64_t in_features,
            int64_t out_features,
            std::unique_ptr<DeviceMemory> weight,
            std::unique_ptr<DeviceMemory> scales,
            std::unique_ptr<DeviceMemory> bias)
      : in_features_(in_features),
        out_features_(out_features),
        weight_(std::move(weight)),
        scales_(std::move(scales)),
        bias_(std::move(bias)) {}

  int64_t in_features_;
  int64_t out_features_;
  std::unique_ptr<DeviceMemory> weight_;
  std::unique_ptr<DeviceMemory> scales_;  // null unless the weights are e4m3
  std::unique_ptr<DeviceMemory> bias_;    // null if there is no bias
};

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_GPU_LINEAR_H_
