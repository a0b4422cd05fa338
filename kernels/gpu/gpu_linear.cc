#include "kernels/gpu/gpu_linear.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/model/element_float.h"
#include "kernels/api/linear_source.h"
#include "kernels/cuda/device/element.h"
#include "kernels/gpu/gpu_memory.h"

namespace quire {
namespace {

// Converts `count` elements to to_dtype, which is kF16 or kBF16. `from` need not be aligned.
void Convert(const std::byte* from, DType from_dtype, DType to_dtype, int64_t count, void* to) {
  auto* bits = static_cast<uint16_t*>(to);
  for (int64_t i = 0; i < count; ++i) {
    const float value = ElementToFloat(from + i * SizeOf(from_dtype), from_dtype);
    bits[i] = to_dtype == DType::kF16 ? gpu::FromFloat<gpu::F16>(value).bits
                                      : gpu::FromFloat<gpu::Bf16>(value).bits;
  }
}

// Uploads the bias, converted to `dtype`. Returns null if there is no bias.
absl::StatusOr<std::unique_ptr<DeviceMemory>> UploadBias(const LinearSource& source,
                                                         DType dtype,
                                                         KernelBackend& backend) {
  std::unique_ptr<DeviceMemory> bias;
  if (!source.bias.empty()) {
    const auto count = static_cast<int64_t>(source.bias.size());
    std::vector<uint16_t> converted(source.bias.size());
    Convert(reinterpret_cast<const std::byte*>(source.bias.data()),
            DType::kF32,
            dtype,
            count,
            converted.data());
    QUIRE_ASSIGN_OR_RETURN(bias, backend.Allocate(count * SizeOf(dtype)));
    backend.Upload(bias->data(), converted.data(), count * SizeOf(dtype));
  }
  return bias;
}

// Returns the size of a staging buffer that the parts use one after the other. The buffer holds as
// many rows of any part as fit into kStagingBytes, and at least one row.
int64_t StagingBytes(const LinearSource& source) {
  int64_t bytes = 0;
  for (const MatrixView& part : source.parts) {
    const int64_t row_bytes = RowBytes(part);
    const int64_t rows = std::clamp(GpuLinear::kStagingBytes / row_bytes, int64_t{1}, part.rows);
    bytes = std::max(bytes, rows * row_bytes);
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PackedLinear>> GpuLinear::Pack(const LinearSource& source,
                                                              DType dtype,
                                                              KernelBackend& backend) {
  QUIRE_ASSIGN_OR_RETURN(const LinearShape shape, CheckLinearSource(source));
  const auto [rows, cols] = shape;
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> weight,
                         backend.Allocate(rows * cols * SizeOf(dtype)));
  auto* next = static_cast<std::byte*>(weight->data());
  std::vector<uint16_t> converted;
  for (const MatrixView& part : source.parts) {
    const int64_t count = part.rows * cols;
    const void* from = part.data;
    const DType from_dtype = PlainTypeOf(part.format);
    if (from_dtype != dtype) {
      converted.resize(static_cast<size_t>(count));
      Convert(static_cast<const std::byte*>(part.data), from_dtype, dtype, count, converted.data());
      from = converted.data();
    }
    backend.Upload(next, from, count * SizeOf(dtype));
    next += count * SizeOf(dtype);
  }
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> bias, UploadBias(source, dtype, backend));
  return std::unique_ptr<PackedLinear>(
      new GpuLinear(cols, rows, std::move(weight), /*scales=*/nullptr, std::move(bias)));
}

absl::StatusOr<std::unique_ptr<PackedLinear>> GpuLinear::PackFp8(const LinearSource& source,
                                                                 DType dtype,
                                                                 const gpu::GpuApi& api,
                                                                 gpu::Stream stream,
                                                                 KernelBackend& backend) {
  QUIRE_ASSIGN_OR_RETURN(const LinearShape shape, CheckLinearSource(source));
  const auto [num_rows, cols] = shape;
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> weight, backend.Allocate(num_rows * cols));
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> scales,
                         backend.Allocate(num_rows * int64_t{sizeof(float)}));
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> staging,
                         backend.Allocate(StagingBytes(source)));
  auto* next = static_cast<std::byte*>(weight->data());
  auto* next_scale = static_cast<float*>(scales->data());
  for (const MatrixView& part : source.parts) {
    const int64_t row_bytes = RowBytes(part);
    const int64_t most_rows = staging->size_bytes() / row_bytes;
    const auto* from = static_cast<const std::byte*>(part.data);
    for (int64_t row = 0; row < part.rows; row += most_rows) {
      const int64_t rows = std::min(most_rows, part.rows - row);
      backend.Upload(staging->data(), from + row * row_bytes, rows * row_bytes);
      RequireGpu(api,
                 api.quantize_rows({.num_rows = rows,
                                    .width = static_cast<int32_t>(cols),
                                    .in = staging->data(),
                                    .dtype = PlainTypeOf(part.format),
                                    .out = next,
                                    .scales = next_scale},
                                   stream),
                 "quantize weights");
      next += rows * cols;
      next_scale += rows;
    }
  }
  // Waits for the last kernel that reads the staging memory, which is freed on return.
  RequireGpu(api, api.synchronize(stream), "quantize weights");
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> bias, UploadBias(source, dtype, backend));
  return std::unique_ptr<PackedLinear>(
      new GpuLinear(cols, num_rows, std::move(weight), std::move(scales), std::move(bias)));
}

absl::Status GpuLinear::CheckFp8(const GpuLibrary& library, DType dtype, void* gemm) {
  constexpr int64_t kAnySize = 256;
  constexpr float kAnyBias = 0.0F;
  int error = 0;
  for (const float* bias : {&kAnyBias, static_cast<const float*>(nullptr)}) {
    error = error != 0 ? error
                       : library.api().check_gemm(gemm,
                                                  {.rows = kAnySize,
                                                   .out_features = kAnySize,
                                                   .in_features = kAnySize,
                                                   .bias = bias,
                                                   .dtype = DType::kF8E4M3,
                                                   .y_dtype = dtype});
  }
  if (error == 0) {
    return absl::OkStatus();
  }
  const gpu::DeviceInfo& device = library.device();
  return Error(
      absl::StatusCode::kFailedPrecondition,
      "DEVICE",
      std::string(
          "device: FP8 products with a scale for each row and column are not supported on ") +
          device.name + " (compute capability " + std::to_string(device.compute_capability / 10) +
          "." + std::to_string(device.compute_capability % 10) +
          ") with this cuBLASLt: they need compute capability 9.0 and cuBLASLt 12.9");
}

}  // namespace quire
