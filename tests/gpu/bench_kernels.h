// Kernels that surround the measured ones: they make inputs, check outputs, and only read memory.
//
// Shapes: arrays are 16-byte aligned and counts multiples of 8.
// Errors: as gpu_ops.h.
#ifndef QUIRE_TESTS_GPU_BENCH_KERNELS_H_
#define QUIRE_TESTS_GPU_BENCH_KERNELS_H_

#include <cstdint>

#include "kernels/cuda/gpu_ops.h"

namespace quire::gpu {

// Fills with numbers that are about normal, with mean 0 and standard deviation scale. A number is a
// function of the seed and the index. dtype: f32, bf16, f16 or e4m3.
int FillRandom(void* out, DType dtype, int64_t count, float scale, uint64_t seed, Stream stream);

// Adds the number of elements that are not finite to *counter.
int CountNotFinite(const void* data, DType dtype, int64_t count, int32_t* counter, Stream stream);

// Adds the number of 16-byte units that differ to *counter.
int CountDifferent(const void* a, const void* b, int64_t bytes, int32_t* counter, Stream stream);

// Reads all bytes and writes next to nothing. sums: [kReadThreads] words.
inline constexpr int64_t kReadThreads = int64_t{132} * 8 * 256;
int ReadAll(const void* data, int64_t bytes, uint32_t* sums, Stream stream);

// The counters of an SM: its cycles, and the device's time.
struct alignas(16) ClockReading {
  int64_t cycles = 0;
  int64_t ns = 0;
};
// Reads the counters of all SMs, if the device has nothing else to do. An SM that gets no CTA
// leaves its reading unchanged. The emulator has one clock, of 1000 MHz. readings: [num_sms].
int ReadClocks(ClockReading* readings, int num_sms, Stream stream);

// A row of attention that plain loops compute again, over positions 0 to num_keys - 1.
struct AttentionProbe {
  int32_t sequence = 0;
  int32_t token = 0;  // row of q and of the output
  int32_t head = 0;
  int32_t num_keys = 0;
};
struct ProbeAttentionArgs {
  PagedAttentionParams attention;  // `out` is checked; no sliding window, no ALiBi
  DType activations = DType::kBF16;
  bool has_plain_rows = false;             // whether the cache's rows are plain, not swizzled
  const AttentionProbe* probes = nullptr;  // [num_probes]
  int32_t num_probes = 0;
  float* scores = nullptr;  // room for [num_probes, max_keys]
  int64_t max_keys = 0;
  float* squares = nullptr;  // out: [num_probes, 2], squared errors and squared values
};
int ProbeAttention(const ProbeAttentionArgs& args, Stream stream);

// Computes num_probes outputs of y = x W^T again, at rows and columns spread over y.
struct ProbeProductArgs {
  int64_t rows = 0;
  int64_t out_features = 0;
  int64_t in_features = 0;
  DType dtype = DType::kBF16;  // of x and weight: bf16 or e4m3
  const void* x = nullptr;
  const void* weight = nullptr;
  const float* x_scales = nullptr;       // [rows], e4m3 only
  const float* weight_scales = nullptr;  // [out_features], e4m3 only
  const void* y = nullptr;
  DType y_dtype = DType::kBF16;  // bf16 or f32
  int32_t num_probes = 0;
  float* squares = nullptr;  // out: [num_probes, 2]
};
int ProbeProduct(const ProbeProductArgs& args, Stream stream);

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_GPU_BENCH_KERNELS_H_
