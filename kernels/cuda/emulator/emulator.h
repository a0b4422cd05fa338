// The CUDA thread model on one CPU thread: a fiber for each CUDA thread, CTAs one after another.
// The headers of kernels/cuda/device are written on top of it; kernels see only those.
//
// What hardware leaves open is decided the way that hurts most: an asynchronous copy lands when it
// is waited for and no earlier, shared memory starts as NaN, and every thread runs until it must
// wait. What hardware punishes at random is a fault, reported with kernel, CTA, thread, file and
// line.
//
// Launches go to streams: see streams.h.
//
// Thread safety: each CPU thread has an emulator of its own; the fault handler and the streams are
//                shared, so that one thread launches at a time.
// Sanitizers:    ASan and TSan are told of the fibers. Under TSan barriers, and nothing else, order
//                the threads of a launch. emulator.cc and warp_operation.cc are not instrumented.
#ifndef QUIRE_KERNELS_CUDA_EMULATOR_EMULATOR_H_
#define QUIRE_KERNELS_CUDA_EMULATOR_EMULATOR_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/cuda/emulator/operation.h"

// NOLINTBEGIN(readability-identifier-naming): the names are CUDA's.
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct uint3 {
  uint32_t x, y, z;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct dim3 {
  uint32_t x, y, z;
  // NOLINTNEXTLINE(google-explicit-constructor): as CUDA's.
  constexpr dim3(uint32_t size_x = 1, uint32_t size_y = 1, uint32_t size_z = 1)
      : x(size_x), y(size_y), z(size_z) {}
};

// Of the fiber that runs now.
extern thread_local constinit uint3 threadIdx;
extern thread_local constinit uint3 blockIdx;
extern thread_local constinit dim3 blockDim;
extern thread_local constinit dim3 gridDim;
// NOLINTEND(readability-identifier-naming)

namespace quire::gpu {

// Where a kernel calls something that can be at fault. As the default argument of a function it is
// that function's call; helpers take it from their callers and pass it on.
struct SourceLine {
  const char* file = "";
  int line = 0;

  static constexpr SourceLine Here(const char* file = __builtin_FILE(),
                                   int line = __builtin_LINE()) {
    return {file, line};
  }
};

namespace emulator {

// ---- Limits of an H200 ----

inline constexpr size_t kMaxSharedBytes = size_t{227} * 1024;
inline constexpr uint32_t kMaxThreads = 1024;

// The shared memory that a CTA of the emulated device may have: kMaxSharedBytes, or less where a
// test plays a smaller device.
size_t SharedBytesLimit();
void SetSharedBytesLimit(size_t bytes);

// Values of cudaError_t.
inline constexpr int kErrorInvalidValue = 1;
inline constexpr int kErrorMemoryAllocation = 2;
inline constexpr int kErrorInvalidConfiguration = 9;
inline constexpr int kErrorInvalidDevice = 101;
inline constexpr int kErrorInvalidResourceHandle = 400;
inline constexpr int kErrorNotReady = 600;
inline constexpr int kErrorIllegalAddress = 700;
inline constexpr int kErrorLaunchFailure = 719;
inline constexpr int kErrorCaptureUnsupported = 900;
inline constexpr int kErrorCaptureInvalidated = 901;
inline constexpr int kErrorCaptureIsolation = 905;
inline constexpr int kErrorCapturedEvent = 907;
inline constexpr int kErrorCaptureWrongThread = 908;

// ---- Faults ----

enum class FaultKind : uint8_t {
  kDeadlock,          // every thread waits for another; a stream, for ranks that may never come
  kDivergentBarrier,  // threads of one CTA in different __syncthreads
  kDivergentWarp,     // lanes of one mask in different collectives
  kNotInMask,         // the caller, or the lane it reads from, is not in the mask
  kLaneMissing,       // a lane of the mask has returned or never was
  kMisaligned,
  kOutOfBounds,    // not in shared memory where it must be, or known to ASan as not allocated
  kCopyInFlight,   // a thread returned without waiting for its asynchronous copies
  kSharedOverrun,  // bytes behind the CTA's shared memory were written
  kStackOverflow,
  kOutsideOfLaunch,
  kIncompleteBarrier,  // a named barrier that not all came to when the CTA ended
  kNoBarrier,          // an mbarrier that was not initialised
  kBadDescriptor,      // of a matrix in shared memory
  kMissingFence,       // registers or copies that wgmma reads without the fence it needs
  kOperandChanged,     // of a wgmma, before it was waited for
  kProductInFlight,    // a thread returned without waiting for its wgmma
  kEmptyPlace,         // a copy from a place of windows that shows nothing
  kChangedPlace,       // or something else than when the kernel was enqueued
  // Of an operation on a stream, whose name is in `kernel`.
  kFreedMemory,      // it refers to memory that was freed since it was enqueued or recorded
  kChangedInFlight,  // what a copy reads or writes was written before the copy was waited for
};

struct Fault {
  FaultKind kind;
  const char* kernel;
  uint3 cta;
  uint3 thread;
  SourceLine at;
  const char* text;  // all of the above in words, and what the other threads wait for
};

// Called on the launching thread's own stack. When it returns, the launch ends with
// kErrorLaunchFailure and what its threads still had to do is left undone. The default prints the
// text and aborts. A handler launches nothing.
using FaultHandler = void (*)(const Fault& fault);

// Null: the default. Returns the former handler.
FaultHandler SetFaultHandler(FaultHandler handler);

// Does not return.
[[noreturn]] void ReportFault(FaultKind kind, const char* what, SourceLine at);

// The same of an operation on a stream. Returns kErrorLaunchFailure when the handler returns.
int ReportStreamFault(FaultKind kind, const char* operation, const char* what);

// ---- Launch ----

using ThreadBody = void (*)(void* context);

// 0, or why the device does not launch this.
int CheckLaunch(dim3 grid, dim3 cta, size_t shared_bytes);

// 0 or kErrorLaunchFailure. REQUIRES: CheckLaunch.
int RunLaunch(
    const char* kernel, dim3 grid, dim3 cta, size_t shared_bytes, ThreadBody body, void* context);

// Errors: those of CheckLaunch and of Enqueue.
template <typename... Parameters>
// NOLINTNEXTLINE(readability-function-size): what CUDA's launch takes
int Launch(const char* name,
           void (*kernel)(Parameters...),
           dim3 grid,
           dim3 cta,
           size_t shared_bytes,
           void* stream,
           std::type_identity_t<Parameters>... arguments) {
  if (const int error = CheckLaunch(grid, cta, shared_bytes); error != 0) {
    return error;
  }
  Operation operation = {.name = name};
  (operation.references.AddPointersIn(arguments), ...);
  operation.run = [=] {
    auto call = [&] { kernel(arguments...); };
    return RunLaunch(
        name,
        grid,
        cta,
        shared_bytes,
        [](void* context) { (*static_cast<decltype(call)*>(context))(); },
        &call);
  };
  return Enqueue(stream, std::move(operation));
}

uint8_t* SharedMemory();

// ---- Collectives ----

struct BarrierResult {
  bool any;
  bool all;
  int32_t count;
};

// All threads of the CTA that have not returned.
BarrierResult SyncCta(bool predicate, SourceLine at);

// bar.sync and bar.arrive: the barrier is complete when num_threads threads have come, and then
// those that wait go on and it starts anew. Barrier 0 is that of __syncthreads.
inline constexpr uint32_t kNumNamedBarriers = 16;
void SyncNamedBarrier(uint32_t barrier, uint32_t num_threads, SourceLine at);
void ArriveNamedBarrier(uint32_t barrier, uint32_t num_threads, SourceLine at);

// mbarrier objects, 8 bytes of shared memory.
void InitSharedBarrier(void* barrier, uint32_t count, SourceLine at);
void ArriveSharedBarrier(void* barrier, SourceLine at);
// cp.async.mbarrier.arrive.noinc: arrives when the thread's copies so far have landed.
void ArriveSharedBarrierAfterCopies(void* barrier, SourceLine at);
void WaitSharedBarrier(void* barrier, uint32_t parity, SourceLine at);

// Of the warp operations below, the last lane of the mask to arrive does the work for all.

uint32_t Lane();

void SyncWarp(uint32_t mask, SourceLine at);

// The value of lane source.
uint64_t RunShuffle(uint32_t mask, uint64_t value, uint32_t source, SourceLine at);
uint32_t RunBallot(uint32_t mask, bool predicate, SourceLine at);

// Four 8 x 8 matrices of 16-bit elements; the rows of matrix i are at the pointers of lanes 8 i to
// 8 i + 7, 16-byte aligned, in shared memory.
void RunLoadMatrix(uint32_t* registers, const void* row, bool transposed, SourceLine at);

// d += a * b for the fragments of mma.m16n8k16: products and sums in fp32, k ascending.
void RunMmaBf16(float* d, const uint32_t* a, const uint32_t* b, SourceLine at);
void RunMmaF16(float* d, const uint32_t* a, const uint32_t* b, SourceLine at);

// ---- Asynchronous copies of the calling thread ----

void CopyAsync16(void* shared, const void* global, bool valid, SourceLine at);
void CommitCopies();
// Until at most max_pending of the committed groups are in flight.
void WaitCopies(uint32_t max_pending);

// Matrices in shared memory that copies wrote may be read by wgmma only after this: of the thread
// that copied, or of all threads of the warp that multiplies.
void FenceAsyncProxy();

// ---- Products of a warpgroup: see warpgroup_operation.h ----

struct WgmmaArgs {
  float* d = nullptr;           // the lane's fragment, num_columns / 2 numbers
  const uint32_t* a = nullptr;  // the lane's fragment, 4 words; null: a_descriptor
  uint64_t a_descriptor = 0;
  uint64_t b_descriptor = 0;
  uint32_t num_columns = 0;
  bool b_is_column_major = true;  // K is contiguous; else N is
  bool accumulates = true;        // else d is overwritten
  bool is_bf16 = true;
};
void RunWgmma(const WgmmaArgs& args, SourceLine at);
void RunWgmmaFence(SourceLine at);
void RunWgmmaCommit(SourceLine at);
void RunWgmmaWait(uint32_t max_pending, SourceLine at);

// An address in the shared window, as descriptors hold it.
uint32_t SharedAddress(const void* pointer);

// ---- Checks ----

inline void CheckAligned(const void* pointer, size_t alignment, SourceLine at) {
  if ((reinterpret_cast<uintptr_t>(pointer) & (alignment - 1)) != 0) {
    ReportFault(FaultKind::kMisaligned, "misaligned address", at);
  }
}

}  // namespace emulator
}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_EMULATOR_EMULATOR_H_
