// Quantizes rows to e4m3 with one scale per row. One CTA computes one row.
//
// The row is read once and stays in registers between the search for its largest magnitude and the
// conversion. A maximum is the same in any order, so a row's bits depend on the row alone. Each NaN
// counts as infinity, because fmaxf would ignore a NaN.
//
// Versions: 1 or 2 (kChunks) chunks of 16 elements per thread, for widths up to 8192 and 16384.
//           Wider rows are read twice, because with 4 chunks a thread would spill registers.
// Cost:     3 bytes per element (bf16). For 64 rows of 14336 (2.8 MB) the launch takes most of the
//           time; 8192 such rows move 352 MB, 82 us at 4.3 TB/s. If the norm and the activation
//           quantized their own output, no row would be written and read as bf16. That would save a
//           launch and the moving of 4 bytes per element.
// Source:   Micikevicius et al. 2022, FP8 Formats for Deep Learning (e4m3 without infinities).
#include <cmath>

#include "kernels/cuda/device/dispatch.h"
#include "kernels/cuda/device/early_start.h"
#include "kernels/cuda/device/element.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/device/row_launch.h"
#include "kernels/cuda/device/vector.h"
#include "kernels/cuda/device/warp.h"
#include "kernels/cuda/quantize_rows.h"

namespace quire::gpu {
namespace {

// Elements of a chunk, which is stored in one 16-byte access.
constexpr int kElements = kQuantizedVector;
constexpr float kLargestFloat = 0x1.fffffeP127F;

// Returns the largest magnitude, or infinity if an element is NaN.
QUIRE_DEVICE float LargestMagnitude(const float (&x)[kElements]) {
  float largest = 0.0F;
  QUIRE_UNROLL
  for (int e = 0; e < kElements; ++e) {
    const float magnitude = fabsf(x[e]);
    largest = magnitude <= kLargestFloat ? fmaxf(largest, magnitude) : INFINITY;
  }
  return largest;
}

// Returns the scale for a row whose largest magnitude is `largest`, or NaN if `largest` is
// infinite.
QUIRE_DEVICE float ScaleFor(float largest) {
  return largest <= kLargestFloat ? fmaxf(largest / kLargestQuantized, kSmallestScale) : NAN;
}

QUIRE_DEVICE void StoreQuantized(const QuantizeRowsArgs& args,
                                 int64_t index,
                                 float inverse,
                                 const float (&x)[kElements]) {
  float quantized[kElements];
  QUIRE_UNROLL
  for (int e = 0; e < kElements; ++e) {
    quantized[e] = x[e] * inverse;
  }
  StoreVector(static_cast<F8E4M3*>(args.out) + index, quantized);
}

template <typename T, int kChunks>
QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS(kMaxRowThreads, 2) QuantizeRowsKernel(QuantizeRowsArgs args) {
  WaitForEarlierOperation();
  StartNext();
  QUIRE_SHARED_MEMORY(shared);
  auto* scratch = reinterpret_cast<float*>(shared);
  const int64_t row = int64_t{blockIdx.x} * args.width;
  const T* in = static_cast<const T*>(args.in) + row;
  const int32_t first = static_cast<int32_t>(threadIdx.x) * kElements;
  const int32_t stride = static_cast<int32_t>(blockDim.x) * kElements;

  float x[kChunks][kElements];
  float largest = 0.0F;
  QUIRE_UNROLL
  for (int c = 0; c < kChunks; ++c) {
    if (first + c * stride < args.width) {
      LoadVector(in + first + c * stride, x[c]);
      largest = fmaxf(largest, LargestMagnitude(x[c]));
    }
  }
  const float scale = ScaleFor(CtaMax(largest, scratch));
  if (threadIdx.x == 0) {
    args.scales[blockIdx.x] = scale;
  }

  QUIRE_UNROLL
  for (int c = 0; c < kChunks; ++c) {
    if (first + c * stride < args.width) {
      StoreQuantized(args, row + first + c * stride, 1.0F / scale, x[c]);
    }
  }
}

template <typename T>
QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS(kMaxRowThreads, 2)
    QuantizeWideRowsKernel(QuantizeRowsArgs args) {
  WaitForEarlierOperation();
  StartNext();
  QUIRE_SHARED_MEMORY(shared);
  auto* scratch = reinterpret_cast<float*>(shared);
  const int64_t row = int64_t{blockIdx.x} * args.width;
  const T* in = static_cast<const T*>(args.in) + row;
  const int32_t first = static_cast<int32_t>(threadIdx.x) * kElements;
  const int32_t stride = static_cast<int32_t>(blockDim.x) * kElements;

  float x[kElements];
  float largest = 0.0F;
  for (int32_t i = first; i < args.width; i += stride) {
    LoadVector(in + i, x);
    largest = fmaxf(largest, LargestMagnitude(x));
  }
  const float scale = ScaleFor(CtaMax(largest, scratch));
  if (threadIdx.x == 0) {
    args.scales[blockIdx.x] = scale;
  }

  for (int32_t i = first; i < args.width; i += stride) {
    LoadVector(in + i, x);
    StoreQuantized(args, row + i, 1.0F / scale, x);
  }
}

template <typename T>
int LaunchQuantizeRows(const QuantizeRowsArgs& args, Stream stream) {
  const int32_t num_chunks = args.width / kElements;
  const int32_t least = NumChunksPerThread(num_chunks);
  const auto launch = [&](void (*kernel)(QuantizeRowsArgs), int32_t chunks_per_thread) {
    return LaunchRows(kernel, args.num_rows, num_chunks, chunks_per_thread, stream, args);
  };
  if (least <= 1) {
    return launch(QuantizeRowsKernel<T, 1>, 1);
  }
  if (least <= 2) {
    return launch(QuantizeRowsKernel<T, 2>, 2);
  }
  return launch(QuantizeWideRowsKernel<T>, least);
}

}  // namespace

int QuantizeRows(const QuantizeRowsArgs& args, Stream stream) {
  if (args.width % kQuantizedVector != 0) {
    return kUnsupported;
  }
  return DispatchElementOrFloat(args.dtype, [&]<typename T>() {
    return args.num_rows == 0 ? 0 : LaunchQuantizeRows<T>(args, stream);
  });
}

}  // namespace quire::gpu
