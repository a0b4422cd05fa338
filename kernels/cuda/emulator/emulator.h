// The CUDA thread model on one CPU thread: a fiber for each CUDA thread, CTAs one after another.
// The headers of kernels/cuda/device use the emulator, and kernels include only those headers.
//
// Where hardware leaves behavior open, the emulator makes the most hostile choice: an asynchronous
// copy lands only when it is waited for, shared memory starts as NaN, and every thread runs until
// it must wait. Errors that hardware shows only sometimes are always faults, reported with kernel,
// CTA, thread, file and line.
//
// Launches are enqueued on streams: see streams.h.
//
// Thread safety: each CPU thread has its own emulator. The fault handler and the streams are
//                shared, so only one thread may launch at a time.
// Sanitizers:    ASan and TSan are told of the fibers. Under TSan only barriers order the threads
//                of a launch. The files that machine.h lists are compiled without sanitizers.
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

// Values of the running fiber.
extern thread_local constinit uint3 threadIdx;
extern thread_local constinit uint3 blockIdx;
extern thread_local constinit dim3 blockDim;
extern thread_local constinit dim3 gridDim;
// NOLINTEND(readability-identifier-naming)

namespace quire::gpu {

// The line of a kernel's source that made a call, for fault reports. A function that can fault
// takes a SourceLine as a parameter with the default argument Here(), which is the caller's line.
// Helpers pass on their caller's line.
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

// Returns the largest shared memory of a CTA: kMaxSharedBytes, or less if a test emulates a smaller
// device.
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
  kDeadlock,  // all threads wait for each other, or a stream waits for ranks that may never arrive
  kDivergentBarrier,  // different __syncthreads, or a wrong number or size of a named barrier
  kDivergentWarp,     // lanes of one mask, or warps of one warpgroup, call different operations
  kNotInMask,         // the calling lane, or the lane that it reads from, is not in the mask
  kLaneMissing,       // a lane of the mask has returned or does not exist
  kMisaligned,
  kOutOfBounds,     // outside of shared memory, or not allocated according to ASan
  kCopyInFlight,    // a thread returned without waiting for its asynchronous copies
  kCopyOverlap,     // a copy was started to bytes that another copy in flight will write
  kWrongByteCount,  // bulk copies have more bytes than their mbarrier expects
  kSharedOverrun,   // bytes next to the CTA's shared memory were written
  kStackOverflow,
  kOutsideOfLaunch,
  kIncompleteBarrier,  // a named barrier was incomplete when the CTA ended
  kNoBarrier,          // use of an mbarrier that was not initialized
  kBadDescriptor,      // an invalid descriptor of a matrix in shared memory
  kMissingFence,       // wgmma reads registers or copied bytes for which no fence was called, or a
                       // bulk copy uses an mbarrier that was not fenced after its initialization
  kOperandChanged,     // an operand of wgmma changed before the wait for the product
  kProductInFlight,    // a thread returned without waiting for its wgmma
  kWrittenTwice,       // two CTAs changed the same bytes of global memory (CtaWatch)
  // Faults of a kernel that starts early (early_start.h).
  kEarlyWrite,     // it wrote to global memory before its wait
  kNoEarlierWait,  // a CTA ended without a wait
  // Faults of a kernel's copy from a place, an address range for one mapped block (windows.h).
  kEmptyPlace,    // no block is mapped into the place
  kChangedPlace,  // a block was mapped into the place after the kernel was enqueued
  // Faults of an operation on a stream. Fault::kernel is the operation's name.
  kFreedMemory,      // an enqueued or recorded operation uses memory that was freed
  kChangedInFlight,  // a copy's source or destination was written before the wait for the copy
};

struct Fault {
  FaultKind kind;
  const char* kernel;
  uint3 cta;
  uint3 thread;
  SourceLine at;
  const char* text;  // describes the fault, and where the other threads wait
};

// Called on the launching thread's own stack. After the handler returns, the launch is abandoned
// with kErrorLaunchFailure. The default handler prints the text and aborts. A handler must not
// launch.
using FaultHandler = void (*)(const Fault& fault);

// Sets the handler; null sets the default. Returns the former handler.
FaultHandler SetFaultHandler(FaultHandler handler);

// Ends the launch with this fault of the running thread.
[[noreturn]] void ReportFault(FaultKind kind, const char* what, SourceLine at);

// Reports a fault of an operation on a stream. Returns kErrorLaunchFailure if the handler returns.
int ReportStreamFault(FaultKind kind, const char* operation, const char* what);

// ---- Launch ----

using ThreadBody = void (*)(void* context);

// Returns 0, or the error with which a device would refuse the launch.
int CheckLaunch(dim3 grid, dim3 cta, size_t shared_bytes);

// Calls body(context) in each CUDA thread of the launch. Returns 0 or kErrorLaunchFailure.
// REQUIRES: CheckLaunch returned 0.
int RunLaunch(
    const char* kernel, dim3 grid, dim3 cta, size_t shared_bytes, ThreadBody body, void* context);

// Waits for the stream's previous operation. Returns at once in a kernel that does not start early.
void WaitForEarlierOperation(SourceLine at);

// Enqueues a launch of the kernel. starts_early: see early_start.h. Returns 0, or an error of
// CheckLaunch or Enqueue.
template <typename... Parameters>
// NOLINTNEXTLINE(readability-function-size): the parameters of CUDA's launch
int Launch(const char* name,
           bool starts_early,
           void (*kernel)(Parameters...),
           dim3 grid,
           dim3 cta,
           size_t shared_bytes,
           void* stream,
           std::type_identity_t<Parameters>... arguments) {
  if (const int error = CheckLaunch(grid, cta, shared_bytes); error != 0) {
    return error;
  }
  Operation operation = {.name = name, .starts_early = starts_early};
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

// Tells the emulator that the bytes of global memory are used by atomic operations (cta_rules.h).
void NoteAtomic(const void* address, size_t bytes);
// Does the same as NoteAtomic, and tells the emulator that the operation orders the accesses of
// CTAs. Must be called before the operation.
void NoteAcquireRelease(const void* address, size_t bytes);

// ---- Collectives ----

struct BarrierResult {
  bool any;
  bool all;
  int32_t count;
};

// Waits until all threads of the CTA have called SyncCta or have ended. The result combines the
// predicates.
BarrierResult SyncCta(bool predicate, SourceLine at);

// bar.sync and bar.arrive. When num_threads threads have called one of the two functions, waiting
// threads continue and the barrier starts anew. Barrier 0 belongs to __syncthreads.
inline constexpr uint32_t kNumNamedBarriers = 16;
void SyncNamedBarrier(uint32_t barrier, uint32_t num_threads, SourceLine at);
void ArriveNamedBarrier(uint32_t barrier, uint32_t num_threads, SourceLine at);

// mbarrier objects, which take 8 bytes of shared memory each.
void InitSharedBarrier(void* barrier, uint32_t count, SourceLine at);
void ArriveSharedBarrier(void* barrier, SourceLine at);
// cp.async.mbarrier.arrive.noinc. Returns at once; the arrival takes effect when all copies that
// the thread has started so far have landed.
void ArriveSharedBarrierAfterCopies(void* barrier, SourceLine at);
void WaitSharedBarrier(void* barrier, uint32_t parity, SourceLine at);
// mbarrier.expect_tx: the current phase ends only after bulk copies of `bytes` more bytes have
// landed.
void ExpectBytes(void* barrier, uint32_t bytes, SourceLine at);
// cp.async.bulk from global to shared memory, which reports its bytes to the mbarrier. Lands as
// late as possible: when a thread waits for the end of the mbarrier's phase.
void CopyBulk(void* shared, const void* global, uint32_t bytes, void* barrier, SourceLine at);

// In the warp operations below, the lane that arrives last does the work for all lanes of the mask.

uint32_t Lane();

void SyncWarp(uint32_t mask, SourceLine at);

// Returns the value of lane `source`.
uint64_t RunShuffle(uint32_t mask, uint64_t value, uint32_t source, SourceLine at);
uint32_t RunBallot(uint32_t mask, bool predicate, SourceLine at);

// Loads four 8 x 8 matrices of 16-bit elements. Lanes 8 i to 8 i + 7 point to the rows of matrix i
// in shared memory, 16-byte aligned.
void RunLoadMatrix(uint32_t* registers, const void* row, bool transposed, SourceLine at);

// d += a * b for the fragments of mma.m16n8k16: products and sums in fp32, k ascending.
void RunMmaBf16(float* d, const uint32_t* a, const uint32_t* b, SourceLine at);
void RunMmaF16(float* d, const uint32_t* a, const uint32_t* b, SourceLine at);

// ---- Asynchronous copies of the calling thread ----

void CopyAsync16(void* shared, const void* global, bool valid, SourceLine at);
void CommitCopies();
// Waits until at most max_pending of the committed groups are in flight.
void WaitCopies(uint32_t max_pending);

// Must be called by the thread that copied, or by all threads of the warp that multiplies. The call
// must follow the copy's landing in shared memory, and precede the wgmma that reads the bytes.
void FenceAsyncProxy();

// ---- Products of a warpgroup: see warpgroup_operation.h ----

struct WgmmaArgs {
  float* d = nullptr;           // the lane's fragment, num_columns / 2 numbers
  const uint32_t* a = nullptr;  // the lane's fragment, 4 words; if null, A is at a_descriptor
  uint64_t a_descriptor = 0;
  uint64_t b_descriptor = 0;
  uint32_t num_columns = 0;
  bool b_is_column_major = true;  // true if K is contiguous, false if N is
  bool accumulates = true;        // if false, the product overwrites d
  bool is_bf16 = true;
};
void RunWgmma(const WgmmaArgs& args, SourceLine at);
void RunWgmmaFence(SourceLine at);
void RunWgmmaCommit(SourceLine at);
void RunWgmmaWait(uint32_t max_pending, SourceLine at);

// Returns the address that matrix descriptors hold: kSharedWindow + the offset in shared memory.
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
