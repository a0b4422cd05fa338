#include "kernels/gpu/gpu_linear.h"

#include <cstddef>
#include <cstring>
#include <vector>

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/device/element.h"

namespace quire {
namespace {

float LoadFloat(const std::byte* at, DType dtype) {
  if (dtype == DType::kF32) {
    float value = 0.0F;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  return dtype == DType::kF16 ? gpu::ToFloat(gpu::F16{bits}) : gpu::ToFloat(gpu::Bf16{bits});
}

// `count` elements, converted. The source need not be aligned.
void Convert(const std::byte* from, DType from_dtype, DType to_dtype, int64_t count, void* to) {
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, static_cast<size_t>(count * SizeOf(from_dtype)));
    return;
  }
  auto* bits = static_cast<uint16_t*>(to);
  for (int64_t i = 0; i < count; ++i) {
    const float value = LoadFloat(from + i * SizeOf(from_dtype), from_dtype);
    bits[i] = to_dtype == DType::kF16 ? gpu::FromFloat<gpu::F16>(value).bits
                                      : gpu::FromFloat<gpu::Bf16>(value).bits;
  }
}

absl::Status CheckSource(const LinearSource& source) {
  if (source.parts.empty()) {
    return InvalidArgument("LINEAR_SHAPE", "linear.parts: must not be empty");
  }
  int64_t rows = 0;
  for (const MatrixView& part : source.parts) {
    if (part.cols != source.parts[0].cols) {
      return InvalidArgument("LINEAR_SHAPE", "linear.parts: must have the same number of columns");
    }
    rows += part.rows;
  }
  if (!source.bias.empty() && static_cast<int64_t>(source.bias.size()) != rows) {
    return InvalidArgument("LINEAR_SHAPE", "linear.bias: must have one value per row");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PackedLinear>> GpuLinear::Pack(const LinearSource& source,
                                                              DType dtype,
                                                              KernelBackend& backend) {
  QUIRE_RETURN_IF_ERROR(CheckSource(source));
  const int64_t cols = source.parts[0].cols;
  int64_t rows = 0;
  for (const MatrixView& part : source.parts) {
    rows += part.rows;
  }
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> weight,
                         backend.Allocate(rows * cols * SizeOf(dtype)));
  auto* next = static_cast<std::byte*>(weight->data());
  std::vector<uint16_t> converted;
  for (const MatrixView& part : source.parts) {
    const int64_t count = part.rows * cols;
    converted.resize(static_cast<size_t>(count));
    Convert(static_cast<const std::byte*>(part.data), part.dtype, dtype, count, converted.data());
    backend.Upload(next, converted.data(), count * SizeOf(dtype));
    next += count * SizeOf(dtype);
  }
  std::unique_ptr<DeviceMemory> bias;
  if (!source.bias.empty()) {
    converted.resize(source.bias.size());
    Convert(reinterpret_cast<const std::byte*>(source.bias.data()),
            DType::kF32,
            dtype,
            rows,
            converted.data());
    QUIRE_ASSIGN_OR_RETURN(bias, backend.Allocate(rows * SizeOf(dtype)));
    backend.Upload(bias->data(), converted.data(), rows * SizeOf(dtype));
  }
  return std::unique_ptr<PackedLinear>(
      new GpuLinear(cols, rows, std::move(weight), std::move(bias)));
}

}  // namespace quire
