#include <algorithm>
#include <chrono>

#include "kernels/cuda/device/dispatch.h"
#include "kernels/cuda/device/math.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/device/vector.h"
#include "kernels/cuda/device/warp.h"
#include "tests/gpu/bench_kernels.h"

namespace quire::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxCtas = kReadThreads / kThreads;
constexpr int kElements = 8;  // elements of a thread at a time
constexpr int kProbeThreads = 128;
constexpr int kMaxHeadDim = 256;

dim3 GridFor(int64_t num_threads) {
  const int64_t ctas = (num_threads + kThreads - 1) / kThreads;
  return dim3(static_cast<uint32_t>(std::min(ctas, kMaxCtas)));
}

QUIRE_DEVICE int64_t ThreadIndex() {
  return int64_t{blockIdx.x} * kThreads + static_cast<int64_t>(threadIdx.x);
}

QUIRE_DEVICE int64_t NumThreads() { return int64_t{gridDim.x} * kThreads; }

// Returns the sum of four uniform 16-bit numbers, shifted to mean 0 and scaled to variance 1.
QUIRE_DEVICE float RandomNumber(uint64_t seed, int64_t index) {
  uint64_t x = seed + static_cast<uint64_t>(index) * 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  x ^= x >> 31;
  const auto sum =
      static_cast<uint32_t>((x & 0xFFFF) + ((x >> 16) & 0xFFFF) + ((x >> 32) & 0xFFFF) + (x >> 48));
  constexpr float kOne = 65536.0F;
  constexpr float kRootOfThree = 1.7320508F;
  return (static_cast<float>(sum) / kOne - 2.0F) * kRootOfThree;
}

template <typename T>
QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS(kThreads, 1)
    FillRandomKernel(T* out, int64_t count, float scale, uint64_t seed) {
  for (int64_t i = ThreadIndex() * kElements; i < count; i += NumThreads() * kElements) {
    float numbers[kElements];
    QUIRE_UNROLL
    for (int e = 0; e < kElements; ++e) {
      numbers[e] = scale * RandomNumber(seed, i + e);
    }
    StoreVector(out + i, numbers);
  }
}

template <typename T>
QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS(kThreads, 1)
    CountNotFiniteKernel(const T* data, int64_t count, int32_t* counter) {
  constexpr float kLargest = 3.402823466e38F;
  int32_t found = 0;
  for (int64_t i = ThreadIndex() * kElements; i < count; i += NumThreads() * kElements) {
    float numbers[kElements];
    LoadVector(data + i, numbers);
    QUIRE_UNROLL
    for (int e = 0; e < kElements; ++e) {
      found += fabsf(numbers[e]) <= kLargest ? 0 : 1;
    }
  }
  if (found > 0) {
    atomicAdd(counter, found);
  }
}

QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS(kThreads, 1)
    CountDifferentKernel(const uint4* a, const uint4* b, int64_t count, int32_t* counter) {
  int32_t found = 0;
  for (int64_t i = ThreadIndex(); i < count; i += NumThreads()) {
    const uint4 x = a[i];
    const uint4 y = b[i];
    found += x.x == y.x && x.y == y.y && x.z == y.z && x.w == y.w ? 0 : 1;
  }
  if (found > 0) {
    atomicAdd(counter, found);
  }
}

// Each thread has eight loads of 16 bytes in flight.
QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS(kThreads, 1)
    ReadAllKernel(const uint4* data, int64_t count, uint32_t* sums) {
  constexpr int kLoads = 8;
  uint32_t sum = 0;
  const int64_t stride = NumThreads();
  int64_t i = ThreadIndex();
  for (; i + (kLoads - 1) * stride < count; i += kLoads * stride) {
    uint4 loaded[kLoads];
    QUIRE_UNROLL
    for (int load = 0; load < kLoads; ++load) {
      loaded[load] = data[i + load * stride];
    }
    QUIRE_UNROLL
    for (int load = 0; load < kLoads; ++load) {
      sum += loaded[load].x ^ loaded[load].y ^ loaded[load].z ^ loaded[load].w;
    }
  }
  for (; i < count; i += stride) {
    const uint4 last = data[i];
    sum += last.x ^ last.y ^ last.z ^ last.w;
  }
  sums[ThreadIndex()] = sum;
}

QUIRE_DEVICE ClockReading ReadClock() {
  ClockReading reading;
#ifdef __CUDACC__
  uint64_t ns = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  reading.ns = static_cast<int64_t>(ns);
  reading.cycles = clock64();
#else
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  reading.ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  reading.cycles = reading.ns;
#endif
  return reading;
}

QUIRE_DEVICE uint32_t SmIndex() {
#ifdef __CUDACC__
  uint32_t index = 0;
  asm volatile("mov.u32 %0, %smid;" : "=r"(index));
  return index;
#else
  return blockIdx.x;
#endif
}

// Each CTA is one warp. Each SM runs one CTA.
QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS(kWarpSize, 1)
    ReadClocksKernel(ClockReading* readings, uint32_t num_sms) {
  const uint32_t sm = SmIndex();
  if (threadIdx.x == 0 && sm < num_sms) {
    readings[sm] = ReadClock();
  }
}

// ---- Probes -------------------------------------------------------------------------------------

// Finds elements of keys. Keys and values of a token lie at the same places of their planes, so the
// same element of the value is layout.value_offset further.
struct Positions {
  const BlockId* blocks;
  int32_t block_size_tokens;
  int32_t element_bytes;
  int32_t row_chunks;
  bool has_plain_rows;
  int64_t block_stride;
  int64_t offset;  // of the layer and the head

  QUIRE_DEVICE int64_t At(int32_t position, int32_t dim) const {
    const int32_t byte = dim * element_bytes;
    const int32_t slot = position % block_size_tokens;
    const int32_t chunk = has_plain_rows
                              ? (slot * row_chunks + byte / 16) * 16
                              : KvChunkOffset(row_chunks, block_size_tokens, slot, byte / 16);
    return blocks[position / block_size_tokens] * block_stride + offset +
           (chunk + byte % 16) / element_bytes;
  }
};

// One CTA of kProbeThreads threads computes one probe. Shared memory: kMaxHeadDim + 32 floats.
template <typename T, typename Cache>
QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS(kProbeThreads, 1) ProbeKernel(ProbeAttentionArgs args) {
  QUIRE_SHARED_MEMORY(shared);
  auto* query = reinterpret_cast<float*>(shared);
  float* scratch = query + kMaxHeadDim;
  const PagedAttentionParams& attention = args.attention;
  const KvCacheLayout& layout = attention.cache.layout;
  const AttentionProbe probe = args.probes[blockIdx.x];
  const int32_t kv_head = probe.head / (attention.num_heads / layout.num_kv_heads);
  const auto* cache = static_cast<const Cache*>(attention.cache.base);
  const int32_t head_dim = layout.head_dim;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  float* scores = args.scores + blockIdx.x * args.max_keys;
  const Positions positions = {
      attention.block_tables + int64_t{probe.sequence} * attention.max_blocks_per_seq,
      layout.block_size_tokens,
      static_cast<int32_t>(sizeof(Cache)),
      head_dim * static_cast<int32_t>(sizeof(Cache)) / 16,
      args.has_plain_rows,
      layout.block_stride,
      attention.layer * layout.layer_stride + kv_head * layout.head_stride};

  // ---- Scores and their maximum ----
  const auto* q = static_cast<const T*>(attention.q) + probe.token * attention.q_row_stride +
                  int64_t{probe.head} * head_dim;
  for (int32_t d = thread; d < head_dim; d += kProbeThreads) {
    query[d] = ToFloat(q[d]);
  }
  __syncthreads();
  float max = -INFINITY;
  for (int32_t key = thread; key < probe.num_keys; key += kProbeThreads) {
    float dot = 0.0F;
    for (int32_t d = 0; d < head_dim; d += kElements) {
      float k[kElements];
      LoadVector(cache + positions.At(key, d), k);
      QUIRE_UNROLL
      for (int e = 0; e < kElements; ++e) {
        dot += query[d + e] * k[e];
      }
    }
    scores[key] = dot * attention.scale * attention.k_scale;
    max = fmaxf(max, scores[key]);
  }
  max = CtaMax(max, scratch);

  // ---- Weights and their sum ----
  float sum = 0.0F;
  for (int32_t key = thread; key < probe.num_keys; key += kProbeThreads) {
    scores[key] = Exp(scores[key] - max);
    sum += scores[key];
  }
  sum = CtaSum(sum, scratch);

  // ---- Weighted sum of the values, against the output ----
  const auto* out = static_cast<const T*>(attention.out) +
                    (int64_t{probe.token} * attention.num_heads + probe.head) * head_dim;
  float errors = 0.0F;
  float values = 0.0F;
  for (int32_t d = thread; d < head_dim; d += kProbeThreads) {
    double total = 0.0;
    for (int32_t key = 0; key < probe.num_keys; ++key) {
      total +=
          double{scores[key]} * double{ToFloat(cache[positions.At(key, d) + layout.value_offset])};
    }
    const auto expected = static_cast<float>(total / double{sum}) * attention.v_scale;
    const float difference = ToFloat(out[d]) - expected;
    errors += difference * difference;
    values += expected * expected;
  }
  errors = CtaSum(errors, scratch);
  values = CtaSum(values, scratch);
  if (thread == 0) {
    args.squares[2 * blockIdx.x] = errors;
    args.squares[2 * blockIdx.x + 1] = values;
  }
}

// One CTA of one warp computes one probe.
template <typename T>
QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS(kWarpSize, 1) ProbeProductKernel(ProbeProductArgs args) {
  constexpr int64_t kRowStep = 7919;  // primes, so that rows and columns repeat in different cycles
  constexpr int64_t kColumnStep = 104729;
  const int64_t probe = blockIdx.x;
  // The first probe is the last element.
  const int64_t row = (args.rows - 1 + probe * kRowStep) % args.rows;
  const int64_t column = (args.out_features - 1 + probe * kColumnStep) % args.out_features;
  const auto* x = static_cast<const T*>(args.x) + row * args.in_features;
  const auto* weight = static_cast<const T*>(args.weight) + column * args.in_features;
  float dot = 0.0F;
  for (int64_t k = threadIdx.x; k < args.in_features; k += kWarpSize) {
    dot += ToFloat(x[k]) * ToFloat(weight[k]);
  }
  dot = WarpSum(dot);
  if constexpr (std::is_same_v<T, F8E4M3>) {
    dot *= args.x_scales[row] * args.weight_scales[column];
  }
  if (threadIdx.x == 0) {
    const int64_t at = row * args.out_features + column;
    const float y = args.y_dtype == DType::kF32 ? static_cast<const float*>(args.y)[at]
                                                : ToFloat(static_cast<const Bf16*>(args.y)[at]);
    args.squares[2 * probe] = (y - dot) * (y - dot);
    args.squares[2 * probe + 1] = dot * dot;
  }
}

// Calls body with f32, bf16, f16 or e4m3.
template <typename Body>
int DispatchAnyElement(DType dtype, Body&& body) {
  if (dtype == DType::kF8E4M3) {
    return body.template operator()<F8E4M3>();
  }
  return DispatchElementOrFloat(dtype, body);
}

}  // namespace

int FillRandom(void* out, DType dtype, int64_t count, float scale, uint64_t seed, Stream stream) {
  return DispatchAnyElement(dtype, [&]<typename T>() {
    return QUIRE_LAUNCH(FillRandomKernel<T>,
                        GridFor(count / kElements),
                        dim3(kThreads),
                        0,
                        stream,
                        static_cast<T*>(out),
                        count,
                        scale,
                        seed);
  });
}

int CountNotFinite(const void* data, DType dtype, int64_t count, int32_t* counter, Stream stream) {
  return DispatchAnyElement(dtype, [&]<typename T>() {
    return QUIRE_LAUNCH(CountNotFiniteKernel<T>,
                        GridFor(count / kElements),
                        dim3(kThreads),
                        0,
                        stream,
                        static_cast<const T*>(data),
                        count,
                        counter);
  });
}

int CountDifferent(const void* a, const void* b, int64_t bytes, int32_t* counter, Stream stream) {
  const int64_t count = bytes / static_cast<int64_t>(sizeof(uint4));
  return QUIRE_LAUNCH(CountDifferentKernel,
                      GridFor(count),
                      dim3(kThreads),
                      0,
                      stream,
                      static_cast<const uint4*>(a),
                      static_cast<const uint4*>(b),
                      count,
                      counter);
}

int ReadAll(const void* data, int64_t bytes, uint32_t* sums, Stream stream) {
  const int64_t count = bytes / static_cast<int64_t>(sizeof(uint4));
  return QUIRE_LAUNCH(ReadAllKernel,
                      GridFor(count),
                      dim3(kThreads),
                      0,
                      stream,
                      static_cast<const uint4*>(data),
                      count,
                      sums);
}

int ReadClocks(ClockReading* readings, int num_sms, Stream stream) {
  const auto num_ctas = static_cast<uint32_t>(num_sms);
  return QUIRE_LAUNCH(
      ReadClocksKernel, dim3(num_ctas), dim3(kWarpSize), 0, stream, readings, num_ctas);
}

int ProbeAttention(const ProbeAttentionArgs& args, Stream stream) {
  return DispatchCacheElement(
      args.activations, args.attention.cache.layout.dtype, [&]<typename T, typename Cache>() {
        return QUIRE_LAUNCH((ProbeKernel<T, Cache>),
                            dim3(static_cast<uint32_t>(args.num_probes)),
                            dim3(kProbeThreads),
                            (kMaxHeadDim + kWarpSize) * sizeof(float),
                            stream,
                            args);
      });
}

int ProbeProduct(const ProbeProductArgs& args, Stream stream) {
  const auto launch = [&](auto kernel) {
    return QUIRE_LAUNCH(
        kernel, dim3(static_cast<uint32_t>(args.num_probes)), dim3(kWarpSize), 0, stream, args);
  };
  return args.dtype == DType::kF8E4M3 ? launch(ProbeProductKernel<F8E4M3>)
                                      : launch(ProbeProductKernel<Bf16>);
}

}  // namespace quire::gpu
