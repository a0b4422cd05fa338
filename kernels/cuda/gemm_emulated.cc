// Matrix products of the emulated build. This code replaces cuBLASLt, not a kernel of this project,
// so it is plain C++. A sum over k is formed from eight interleaved partial sums, so that a
// compiler can vectorize the loop. Each partial sum adds its products in ascending order of k.
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cuda/device/element.h"
#include "kernels/cuda/emulator/operation.h"
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

// T: type of x and weight. Y: type of y and bias.
template <typename T, typename Y>
int Run(const GemmArgs& args) {
  const std::vector<float> x = Widen<T>(args.x, args.rows * args.in_features);
  const int64_t width = args.in_features;
  for (int64_t n = 0; n < args.out_features; ++n) {
    const std::vector<float> weight =
        Widen<T>(static_cast<const T*>(args.weight) + n * width, width);
    for (int64_t m = 0; m < args.rows; ++m) {
      float value = Dot(x.data() + m * width, weight.data(), width);
      if constexpr (std::is_same_v<T, F8E4M3>) {
        value *= args.x_scales[m] * args.weight_scales[n];
      }
      if (args.bias != nullptr) {
        value += ToFloat(static_cast<const Y*>(args.bias)[n]);
      }
      static_cast<Y*>(args.y)[m * args.out_features + n] = FromFloat<Y>(value);
    }
  }
  return 0;
}

template <typename T>
int RunOf(const GemmArgs& args) {
  switch (args.y_dtype) {
    case DType::kBF16:
      return Run<T, Bf16>(args);
    case DType::kF16:
      return Run<T, F16>(args);
    default:
      return Run<T, float>(args);
  }
}

}  // namespace

// A Gemm of this build has no state. Its handle only has to differ from null.
int CreateGemm(const GemmOptions& /*options*/, void** gemm) {
  static char handle;
  *gemm = &handle;
  return 0;
}

int DestroyGemm(void* /*gemm*/) { return 0; }

int CheckGemm(void* /*gemm*/, const GemmArgs& args) {
  return IsValidProduct(args) ? 0 : kUnsupported;
}

namespace {

int Multiply(const GemmArgs& args) {
  switch (args.dtype) {
    case DType::kBF16:
      return RunOf<Bf16>(args);
    case DType::kF16:
      return RunOf<F16>(args);
    default:
      return RunOf<F8E4M3>(args);
  }
}

}  // namespace

int IsGemmPlanned(void* /*gemm*/, const GemmArgs& /*args*/, bool* is_planned) {
  *is_planned = true;
  return 0;
}

int RunGemm(void* /*gemm*/, const GemmArgs& args, Stream stream) {
  if (!IsValidProduct(args)) {
    return kUnsupported;
  }
  emulator::Operation operation = {.name = "product", .run = [args] { return Multiply(args); }};
  operation.references.AddPointersIn(args);
  return emulator::Enqueue(stream, std::move(operation));
}

}  // namespace quire::gpu
