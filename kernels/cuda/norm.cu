// RMSNorm and LayerNorm, after adding delta to the residual: one CTA per row.
//
// The row is read once and stays in registers while its sums are formed. LayerNorm sums the squared
// differences from the mean in a second pass over the registers. In one pass, "mean of the squares
// minus square of the mean" would lose all digits if the mean is large. The width alone decides
// which elements a thread adds, and so the order of additions: each thread adds its elements in
// ascending order, then a butterfly adds up the lanes of a warp, and another adds up the warps.
//
// Versions: 1, 2 or 4 (kChunks) chunks of 8 elements per thread, for widths up to 4096, 8192 and
//           16384. Wider rows do not stay in registers, and each pass reads them again.
// Cost:     12 bytes per element with delta: 4 + 4 to read and write the residual (fp32), 2 to read
//           delta and 2 to write the output (bf16). For 64 rows of 4096 the launch takes most of
//           the time; 8192 rows of 4096 move 403 MB, 94 us at 4.3 TB/s.
// Source:   Zhang and Sennrich 2019, eq. 4, eps inside the root; Ba, Kiros and Hinton 2016, biased
//           variance.
#include "kernels/cuda/device/dispatch.h"
#include "kernels/cuda/device/early_start.h"
#include "kernels/cuda/device/element.h"
#include "kernels/cuda/device/math.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/device/row_launch.h"
#include "kernels/cuda/device/vector.h"
#include "kernels/cuda/device/warp.h"
#include "kernels/cuda/gpu_ops.h"

namespace quire::gpu {
namespace {

constexpr int kElements = 8;  // elements of a chunk

// Loads a chunk of the residual. If delta is not null, adds it and writes the sum back.
template <typename T>
QUIRE_DEVICE void LoadSum(const NormParams& params, int64_t index, float (&sum)[kElements]) {
  LoadVector(params.residual + index, sum);
  if (params.delta == nullptr) {
    return;
  }
  float delta[kElements];
  LoadVector(static_cast<const T*>(params.delta) + index, delta);
  QUIRE_UNROLL
  for (int e = 0; e < kElements; ++e) {
    sum[e] += delta[e];
  }
  StoreVector(params.residual + index, sum);
}

template <typename T>
QUIRE_DEVICE void StoreNormalized(const NormParams& params,
                                  int64_t row,
                                  int32_t i,
                                  float mean,
                                  float inverse,
                                  const float (&x)[kElements]) {
  float weight[kElements];
  LoadVector(params.weight + i, weight);
  float out[kElements];
  QUIRE_UNROLL
  for (int e = 0; e < kElements; ++e) {
    out[e] = (x[e] - mean) * inverse * weight[e];
  }
  if (params.bias != nullptr) {
    float bias[kElements];
    LoadVector(params.bias + i, bias);
    QUIRE_UNROLL
    for (int e = 0; e < kElements; ++e) {
      out[e] += bias[e];
    }
  }
  StoreVector(static_cast<T*>(params.out) + row + i, out);
  if (params.out_f32 != nullptr) {
    StoreVector(params.out_f32 + row + i, out);
  }
}

QUIRE_DEVICE float Sum(const float (&x)[kElements]) {
  float sum = 0.0F;
  QUIRE_UNROLL
  for (int e = 0; e < kElements; ++e) {
    sum += x[e];
  }
  return sum;
}

QUIRE_DEVICE float SumOfSquares(const float (&x)[kElements], float mean) {
  float sum = 0.0F;
  QUIRE_UNROLL
  for (int e = 0; e < kElements; ++e) {
    sum += (x[e] - mean) * (x[e] - mean);
  }
  return sum;
}

QUIRE_DEVICE float InverseRoot(const NormParams& params, float sum_of_squares) {
  return Rsqrt(sum_of_squares / static_cast<float>(params.width) + params.eps);
}

template <typename T, int kChunks>
QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS(kMaxRowThreads, 2) NormKernel(NormParams params) {
  WaitForEarlierOperation();
  StartNext();
  const auto width = static_cast<int32_t>(params.width);
  QUIRE_SHARED_MEMORY(shared);
  auto* scratch = reinterpret_cast<float*>(shared);
  const int64_t row = int64_t{blockIdx.x} * width;
  const int32_t first = static_cast<int32_t>(threadIdx.x) * kElements;
  const int32_t stride = static_cast<int32_t>(blockDim.x) * kElements;

  float x[kChunks][kElements];
  float sum = 0.0F;
  QUIRE_UNROLL
  for (int c = 0; c < kChunks; ++c) {
    if (first + c * stride < width) {
      LoadSum<T>(params, row + first + c * stride, x[c]);
      sum += Sum(x[c]);
    }
  }
  float mean = 0.0F;
  if (params.kind == NormKind::kLayerNorm) {
    mean = CtaSum(sum, scratch) / static_cast<float>(width);
  }

  float squares = 0.0F;
  QUIRE_UNROLL
  for (int c = 0; c < kChunks; ++c) {
    if (first + c * stride < width) {
      squares += SumOfSquares(x[c], mean);
    }
  }
  const float inverse = InverseRoot(params, CtaSum(squares, scratch));

  QUIRE_UNROLL
  for (int c = 0; c < kChunks; ++c) {
    if (first + c * stride < width) {
      StoreNormalized<T>(params, row, first + c * stride, mean, inverse, x[c]);
    }
  }
}

// For wide rows. In each pass a thread reads only elements that no other thread writes, so the
// passes need no barrier between them.
template <typename T>
QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS(kMaxRowThreads, 2) NormWideKernel(NormParams params) {
  WaitForEarlierOperation();
  StartNext();
  const auto width = static_cast<int32_t>(params.width);
  QUIRE_SHARED_MEMORY(shared);
  auto* scratch = reinterpret_cast<float*>(shared);
  const int64_t row = int64_t{blockIdx.x} * width;
  const int32_t first = static_cast<int32_t>(threadIdx.x) * kElements;
  const int32_t stride = static_cast<int32_t>(blockDim.x) * kElements;

  float x[kElements];
  float sum = 0.0F;
  for (int32_t i = first; i < width; i += stride) {
    LoadSum<T>(params, row + i, x);
    sum += Sum(x);
  }
  float mean = 0.0F;
  if (params.kind == NormKind::kLayerNorm) {
    mean = CtaSum(sum, scratch) / static_cast<float>(width);
  }

  float squares = 0.0F;
  for (int32_t i = first; i < width; i += stride) {
    LoadVector(params.residual + row + i, x);
    squares += SumOfSquares(x, mean);
  }
  const float inverse = InverseRoot(params, CtaSum(squares, scratch));

  for (int32_t i = first; i < width; i += stride) {
    LoadVector(params.residual + row + i, x);
    StoreNormalized<T>(params, row, i, mean, inverse, x);
  }
}

template <typename T>
int LaunchNorm(const NormParams& params, Stream stream) {
  const auto num_chunks = static_cast<int32_t>(params.width) / kElements;
  const int32_t least = NumChunksPerThread(num_chunks);
  const auto launch = [&](void (*kernel)(NormParams), int32_t chunks_per_thread) {
    return LaunchRows(kernel, params.num_tokens, num_chunks, chunks_per_thread, stream, params);
  };
  if (least <= 1) {
    return launch(NormKernel<T, 1>, 1);
  }
  if (least <= 2) {
    return launch(NormKernel<T, 2>, 2);
  }
  if (least <= 4) {
    return launch(NormKernel<T, 4>, 4);
  }
  return launch(NormWideKernel<T>, least);
}

}  // namespace

int Norm(const NormParams& params, DType activations, Stream stream) {
  return DispatchElement(activations, [&]<typename T>() {
    return params.num_tokens == 0 ? 0 : LaunchNorm<T>(params, stream);
  });
}

}  // namespace quire::gpu
