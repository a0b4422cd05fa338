// The CUDA names that kernels use: CUDA's own under nvcc, the emulator's under g++.
//
// Usage:
//   QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS(128, 2) Scale(float* x, float factor) { ... }
//   int error = QUIRE_LAUNCH(Scale, dim3(grid), dim3(128), shared_bytes, stream, x, factor);
//   int error = QUIRE_LAUNCH((Sort<Bf16, 4>), ...);  // parentheses around commas
//
// QUIRE_LAUNCH_EARLY takes the same arguments and launches a kernel that may overlap with the
// previous operation on the stream (early_start.h). Below compute capability 9.0 it is like
// QUIRE_LAUNCH.
//
// All shared memory is dynamic: the launch sets its size, and QUIRE_SHARED_MEMORY(name) declares
// `name`, a uint8_t* to shared memory, 128-byte aligned. Kernels pass the mask kWholeWarp to warp
// operations unless there is a reason for another mask.
//
// Thread safety: one caller at a time launches on a stream; device functions are as in CUDA.
#ifndef QUIRE_KERNELS_CUDA_DEVICE_PORTABILITY_H_
#define QUIRE_KERNELS_CUDA_DEVICE_PORTABILITY_H_

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#include <map>
#include <mutex>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include <cuda_runtime.h>
#else
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/emulator/emulator.h"
#endif

namespace quire::gpu {

inline constexpr uint32_t kWholeWarp = 0xFFFFFFFF;
inline constexpr int kWarpSize = 32;

}  // namespace quire::gpu

#ifdef __CUDACC__

#define QUIRE_DEVICE __device__ __forceinline__
#define QUIRE_KERNEL __global__
#define QUIRE_LAUNCH_BOUNDS(max_threads, min_ctas) __launch_bounds__(max_threads, min_ctas)
#define QUIRE_PRAGMA(text) _Pragma(#text)
#define QUIRE_UNROLL _Pragma("unroll")
#define QUIRE_UNROLL_BY(count) QUIRE_PRAGMA(unroll count)
#define QUIRE_SHARED_MEMORY(name)                                 \
  extern __shared__ __align__(128) uint8_t quire_shared_memory[]; \
  uint8_t* name = quire_shared_memory
#define QUIRE_LAUNCH(kernel, grid, cta, shared_bytes, stream, ...) \
  ::quire::gpu::LaunchKernel(                                      \
      false, kernel, grid, cta, shared_bytes, stream __VA_OPT__(, ) __VA_ARGS__)
#define QUIRE_LAUNCH_EARLY(kernel, grid, cta, shared_bytes, stream, ...) \
  ::quire::gpu::LaunchKernel(                                            \
      true, kernel, grid, cta, shared_bytes, stream __VA_OPT__(, ) __VA_ARGS__)

namespace quire::gpu {

// Empty, because only the emulator reports source lines.
struct SourceLine {
  __host__ __device__ static constexpr SourceLine Here() { return {}; }
};

// A kernel whose CTAs have at most this much shared memory needs no AllowSharedBytes: the default
// limit of dynamic shared memory and the default share of L1 suffice.
inline constexpr size_t kSmallSharedBytes = 16 * 1024;

// Allows the kernel's CTAs `bytes` of dynamic shared memory on the device. Also asks for the
// largest share of L1 as shared memory, else an SM may get fewer CTAs than fit. Never lowers what
// another thread has allowed. Any thread may call.
inline cudaError_t AllowSharedBytes(int device, const void* kernel, size_t bytes) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, size_t> allowed;
  const std::lock_guard<std::mutex> lock(mutex);
  size_t& so_far = allowed[{device, kernel}];
  if (bytes <= so_far) {
    return cudaSuccess;
  }
  cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  }
  if (error == cudaSuccess) {
    so_far = bytes;
  }
  return error;
}

// Facts about a kernel on a device. Each thread keeps its own, so launches take no lock.
struct KernelFacts {
  bool is_known = false;
  // Whether the kernel's code has the wait of early_start.h. Code for compute capability 9.0 or
  // later has it. Code that the driver compiled from PTX for an older capability lacks it.
  bool can_start_early = false;
  size_t shared_bytes = kSmallSharedBytes;  // shared memory that the kernel is allowed
};

// Sets *can_start_early as in KernelFacts, and allows the kernel `shared_bytes` of shared memory.
inline cudaError_t PrepareKernel(const void* kernel, size_t shared_bytes, bool* can_start_early) {
  thread_local std::unordered_map<const void*, KernelFacts> facts;
  thread_local int facts_device = -1;
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess && device != facts_device) {
    facts.clear();
    facts_device = device;
  }
  KernelFacts& of = facts[kernel];
  if (error == cudaSuccess && !of.is_known) {
    constexpr int kFirstWithWait = 90;
    cudaFuncAttributes attributes;
    error = cudaFuncGetAttributes(&attributes, kernel);
    of.is_known = error == cudaSuccess;
    of.can_start_early = of.is_known && attributes.ptxVersion >= kFirstWithWait &&
                         attributes.binaryVersion >= kFirstWithWait;
  }
  if (error == cudaSuccess && shared_bytes > of.shared_bytes) {
    error = AllowSharedBytes(device, kernel, shared_bytes);
    of.shared_bytes = error == cudaSuccess ? shared_bytes : of.shared_bytes;
  }
  *can_start_early = of.can_start_early;
  return error;
}

template <typename... Parameters>
int LaunchKernel(bool starts_early,
                 void (*kernel)(Parameters...),
                 dim3 grid,
                 dim3 cta,
                 size_t shared_bytes,
                 void* stream,
                 std::type_identity_t<Parameters>... arguments) {
  const void* function = reinterpret_cast<const void*>(kernel);
  bool can_start_early = false;
  cudaError_t error = PrepareKernel(function, shared_bytes, &can_start_early);
  if (error == cudaSuccess) {
    // One extra pointer, so that the array is never empty.
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))..., nullptr};
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = cta;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &attribute;
    config.numAttrs = starts_early && can_start_early ? 1 : 0;
    error = cudaLaunchKernelExC(&config, function, pointers);
  }
  if (error != cudaSuccess) {
    cudaGetLastError();  // clears the error, else a later launch would report it
  }
  return static_cast<int>(error);
}

}  // namespace quire::gpu

#else  // the emulator

#define QUIRE_DEVICE inline
#define QUIRE_KERNEL
#define QUIRE_LAUNCH_BOUNDS(max_threads, min_ctas)
#define QUIRE_UNROLL
#define QUIRE_UNROLL_BY(count)
#define QUIRE_SHARED_MEMORY(name) uint8_t* name = ::quire::gpu::emulator::SharedMemory()
#define QUIRE_LAUNCH(kernel, grid, cta, shared_bytes, stream, ...) \
  ::quire::gpu::emulator::Launch(                                  \
      #kernel, false, kernel, grid, cta, shared_bytes, stream __VA_OPT__(, ) __VA_ARGS__)
#define QUIRE_LAUNCH_EARLY(kernel, grid, cta, shared_bytes, stream, ...) \
  ::quire::gpu::emulator::Launch(                                        \
      #kernel, true, kernel, grid, cta, shared_bytes, stream __VA_OPT__(, ) __VA_ARGS__)

// NOLINTBEGIN(readability-identifier-naming, bugprone-reserved-identifier): the names are CUDA's.

// ---- Barriers ----

inline void __syncthreads(quire::gpu::SourceLine at = quire::gpu::SourceLine::Here()) {
  quire::gpu::emulator::SyncCta(false, at);
}
inline int __syncthreads_or(int predicate,
                            quire::gpu::SourceLine at = quire::gpu::SourceLine::Here()) {
  return quire::gpu::emulator::SyncCta(predicate != 0, at).any ? 1 : 0;
}
inline int __syncthreads_and(int predicate,
                             quire::gpu::SourceLine at = quire::gpu::SourceLine::Here()) {
  return quire::gpu::emulator::SyncCta(predicate != 0, at).all ? 1 : 0;
}
inline int __syncthreads_count(int predicate,
                               quire::gpu::SourceLine at = quire::gpu::SourceLine::Here()) {
  return quire::gpu::emulator::SyncCta(predicate != 0, at).count;
}
inline void __syncwarp(uint32_t mask = quire::gpu::kWholeWarp,
                       quire::gpu::SourceLine at = quire::gpu::SourceLine::Here()) {
  quire::gpu::emulator::SyncWarp(mask, at);
}
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// ---- Shuffles and votes ----

namespace quire::gpu::emulator {

template <typename T>
T ShuffleFrom(uint32_t mask, T value, uint32_t source, SourceLine at) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = RunShuffle(mask, bits, source, at);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace quire::gpu::emulator

template <typename T>
T __shfl_sync(uint32_t mask,
              T value,
              int source,
              int width = quire::gpu::kWarpSize,
              quire::gpu::SourceLine at = quire::gpu::SourceLine::Here()) {
  const auto in_segment = static_cast<uint32_t>(width - 1);
  const uint32_t lane = quire::gpu::emulator::Lane();
  return quire::gpu::emulator::ShuffleFrom(
      mask, value, (lane & ~in_segment) | (static_cast<uint32_t>(source) & in_segment), at);
}

// A segment is `width` lanes. If the source lane is outside the calling lane's segment, the three
// shuffles below return the calling lane's value, with one exception: __shfl_xor_sync reads from
// earlier segments.
template <typename T>
T __shfl_xor_sync(uint32_t mask,
                  T value,
                  int lane_mask,
                  int width = quire::gpu::kWarpSize,
                  quire::gpu::SourceLine at = quire::gpu::SourceLine::Here()) {
  const uint32_t lane = quire::gpu::emulator::Lane();
  const uint32_t source = lane ^ static_cast<uint32_t>(lane_mask);
  // As in hardware, a lane can read from its own and earlier segments, but not from later segments.
  const bool later = source > (lane | static_cast<uint32_t>(width - 1));
  return quire::gpu::emulator::ShuffleFrom(mask, value, later ? lane : source, at);
}

template <typename T>
T __shfl_down_sync(uint32_t mask,
                   T value,
                   uint32_t delta,
                   int width = quire::gpu::kWarpSize,
                   quire::gpu::SourceLine at = quire::gpu::SourceLine::Here()) {
  const uint32_t lane = quire::gpu::emulator::Lane();
  const uint32_t source = lane + delta;
  const bool later = source > (lane | static_cast<uint32_t>(width - 1));
  return quire::gpu::emulator::ShuffleFrom(mask, value, later ? lane : source, at);
}

template <typename T>
T __shfl_up_sync(uint32_t mask,
                 T value,
                 uint32_t delta,
                 int width = quire::gpu::kWarpSize,
                 quire::gpu::SourceLine at = quire::gpu::SourceLine::Here()) {
  const uint32_t lane = quire::gpu::emulator::Lane();
  const bool earlier = delta > (lane & static_cast<uint32_t>(width - 1));
  return quire::gpu::emulator::ShuffleFrom(mask, value, earlier ? lane : lane - delta, at);
}

inline uint32_t __ballot_sync(uint32_t mask,
                              int predicate,
                              quire::gpu::SourceLine at = quire::gpu::SourceLine::Here()) {
  return quire::gpu::emulator::RunBallot(mask, predicate != 0, at);
}
inline int __any_sync(uint32_t mask,
                      int predicate,
                      quire::gpu::SourceLine at = quire::gpu::SourceLine::Here()) {
  return quire::gpu::emulator::RunBallot(mask, predicate != 0, at) != 0 ? 1 : 0;
}
inline int __all_sync(uint32_t mask,
                      int predicate,
                      quire::gpu::SourceLine at = quire::gpu::SourceLine::Here()) {
  return quire::gpu::emulator::RunBallot(mask, predicate == 0, at) == 0 ? 1 : 0;
}

// ---- Atomics, relaxed as in CUDA ----

namespace quire::gpu::emulator {

template <typename T, typename Update>
T AtomicUpdate(T* address, Update update) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  NoteAtomic(address, sizeof(T));
  auto* bits = reinterpret_cast<Bits*>(address);
  Bits before = __atomic_load_n(bits, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(bits,
                                      &before,
                                      std::bit_cast<Bits>(update(std::bit_cast<T>(before))),
                                      false,
                                      __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED)) {
  }
  return std::bit_cast<T>(before);
}

}  // namespace quire::gpu::emulator

template <typename T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return quire::gpu::emulator::AtomicUpdate(address, [=](T old) { return old + value; });
}
template <typename T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T>);
  return quire::gpu::emulator::AtomicUpdate(address,
                                            [=](T old) { return old < value ? value : old; });
}
template <typename T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T>);
  return quire::gpu::emulator::AtomicUpdate(address,
                                            [=](T old) { return value < old ? value : old; });
}
template <typename T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  return quire::gpu::emulator::AtomicUpdate(address, [=](T) { return value; });
}

// ---- Bits ----

inline uint32_t __float_as_uint(float value) { return std::bit_cast<uint32_t>(value); }
inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline int __popc(uint32_t bits) { return std::popcount(bits); }
inline int __clz(int bits) { return std::countl_zero(static_cast<uint32_t>(bits)); }
inline int __ffs(int bits) {  // 0 if no bit is set
  return bits == 0 ? 0 : std::countr_zero(static_cast<uint32_t>(bits)) + 1;
}
inline uint32_t __umulhi(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>((uint64_t{a} * b) >> 32);
}

// NOLINTEND(readability-identifier-naming, bugprone-reserved-identifier)

#endif  // __CUDACC__

namespace quire::gpu {

// Returns the number, but hides its value from the compiler. Else the compiler would move
// computations with the number out of a loop, and their results would occupy registers during the
// whole loop.
QUIRE_DEVICE int32_t NotHoisted(int32_t number) {
#ifdef __CUDACC__
  asm volatile("" : "+r"(number));
#endif
  return number;
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_DEVICE_PORTABILITY_H_
