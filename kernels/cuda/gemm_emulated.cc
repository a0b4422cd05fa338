// The product of the emulated build: no kernel of ours is replaced by it, so it is plain C++. An
// output is one sum over k in ascending order, in eight interleaved parts that a compiler can
// vectorise.
#include <cstring>
#include <vector>

#include "kernels/cuda/device/element.h"
#include "kernels/cuda/emulator/emulator.h"
#include "kernels/cuda/gemm.h"

namespace quire::gpu {
namespace {

constexpr int64_t kParts = 8;

template <typename T>
std::vector<float> Widen(const void* data, int64_t count) {
  const auto* elements = static_cast<const T*>(data);
  std::vector<float> wide(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    wide[static_cast<size_t>(i)] = ToFloat(elements[i]);
  }
  return wide;
}

float Dot(const float* a, const float* b, int64_t count) {
  float sums[kParts] = {};
  for (int64_t k = 0; k + kParts <= count; k += kParts) {
    for (int64_t part = 0; part < kParts; ++part) {
      sums[part] += a[k + part] * b[k + part];
    }
  }
  float sum = 0.0F;
  for (float part : sums) {
    sum += part;
  }
  for (int64_t k = count - count % kParts; k < count; ++k) {
    sum += a[k] * b[k];
  }
  return sum;
}

template <typename T>
int Run(const GemmArgs& args) {
  const std::vector<float> x = Widen<T>(args.x, args.rows * args.in_features);
  const int64_t width = args.in_features;
  for (int64_t n = 0; n < args.out_features; ++n) {
    const std::vector<float> weight =
        Widen<T>(static_cast<const T*>(args.weight) + n * width, width);
    for (int64_t m = 0; m < args.rows; ++m) {
      float value = Dot(x.data() + m * width, weight.data(), width);
      value += args.bias != nullptr ? ToFloat(static_cast<const T*>(args.bias)[n]) : 0.0F;
      const int64_t at = m * args.out_features + n;
      if (args.y_dtype == DType::kF32) {
        static_cast<float*>(args.y)[at] = value;
      } else {
        static_cast<T*>(args.y)[at] = FromFloat<T>(value);
      }
    }
  }
  return 0;
}

}  // namespace

// There is nothing to keep; the pointer is only not null.
int CreateGemm(const GemmOptions& /*options*/, void** gemm) {
  static char handle;
  *gemm = &handle;
  return 0;
}

int DestroyGemm(void* /*gemm*/) { return 0; }

int RunGemm(void* gemm, const GemmArgs& args, Stream stream) {
  if (emulator::Record* record = emulator::CurrentRecord(); record != nullptr) {
    record->push_back([=] { return RunGemm(gemm, args, stream); });
    return 0;
  }
  const bool has_bias = args.bias != nullptr;
  if (args.y_dtype != args.dtype && (args.y_dtype != DType::kF32 || has_bias)) {
    return kUnsupported;
  }
  switch (args.dtype) {
    case DType::kBF16:
      return Run<Bf16>(args);
    case DType::kF16:
      return Run<F16>(args);
    default:
      return kUnsupported;
  }
}

}  // namespace quire::gpu
