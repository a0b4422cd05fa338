// Emulator implements emulator.h: a CTA's threads as fibers, shared memory, barriers, asynchronous
// copies, and their faults. Its parts are in launch.cc (CTAs, stacks, shared memory), schedule.cc
// (which thread runs), barriers.cc, async_copies.cc, bulk_copies.cc and faults.cc. The functions
// that kernels call are in emulator.cc.
//
// These files are always compiled without sanitizers, because the emulator switches stacks, and
// TSan would regard the emulator's bookkeeping as synchronization of the kernel. The emulator calls
// the sanitizers' runtimes itself if they are linked.
//
// Thread safety: one Emulator for each thread that launches.
#ifndef QUIRE_KERNELS_CUDA_EMULATOR_MACHINE_H_
#define QUIRE_KERNELS_CUDA_EMULATOR_MACHINE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/emulator/cta_rules.h"
#include "kernels/cuda/emulator/early_start.h"
#include "kernels/cuda/emulator/emulator.h"
#include "kernels/cuda/emulator/places.h"
#include "kernels/cuda/emulator/warp_operation.h"
#include "kernels/cuda/emulator/warpgroup_operation.h"

// NOLINTBEGIN(readability-identifier-naming, bugprone-reserved-identifier): the runtimes' names.
extern "C" {
[[gnu::weak]] void* __tsan_get_current_fiber();
[[gnu::weak]] void* __tsan_create_fiber(unsigned flags);
[[gnu::weak]] void __tsan_destroy_fiber(void* fiber);
[[gnu::weak]] void __tsan_switch_to_fiber(void* fiber, unsigned flags);
[[gnu::weak]] void __tsan_acquire(void* address);
[[gnu::weak]] void __tsan_release(void* address);
[[gnu::weak]] void __tsan_read_range(void* address, unsigned long bytes);   // NOLINT(runtime/int)
[[gnu::weak]] void __tsan_write_range(void* address, unsigned long bytes);  // NOLINT(runtime/int)

[[gnu::weak]] void* __asan_region_is_poisoned(void* begin, size_t bytes);
[[gnu::weak]] void __asan_unpoison_memory_region(const volatile void* begin, size_t bytes);
[[gnu::weak]] void __sanitizer_start_switch_fiber(void** fake_stack_save,
                                                  const void* bottom,
                                                  size_t size);
[[gnu::weak]] void __sanitizer_finish_switch_fiber(void* fake_stack_save,
                                                   const void** bottom_old,
                                                   size_t* size_old);
}
// NOLINTEND(readability-identifier-naming, bugprone-reserved-identifier)

namespace quire::gpu::emulator {

inline constexpr uint32_t kMaxWarps = kMaxThreads / kWarpSize;
inline constexpr uint32_t kMaxSharedBarriers = 64;
inline constexpr uint8_t kPoison = 0xFF;  // NaN in every type
inline constexpr size_t kCopyBytes = 16;
inline constexpr uint32_t kMaxBulkCopies = 256;  // in flight for one mbarrier
inline constexpr uint32_t kMaxExpectedBytes = (1 << 20) - 1;

// The address that matrix descriptors hold for the first byte of shared memory. The address is not
// aligned for swizzle patterns, so that a kernel faults if it does not align its patterns.
inline constexpr uint32_t kSharedWindow = 0x480;

// The stride of stacks is not a power of two, else the used ends of all stacks would share a few
// cache sets.
inline constexpr size_t kStackBytes = 256 * 1024;
inline constexpr size_t kStackStride = kStackBytes + 17 * 64;

// Bytes of value kGuard: kGuardBytes before and after shared memory, and 8 at the end of each
// stack. If one has changed, a kernel wrote out of bounds.
inline constexpr size_t kGuardBytes = 128;
inline constexpr uint8_t kGuard = 0xA5;

inline bool UnderTsan() { return __tsan_create_fiber != nullptr; }
inline bool UnderAsan() { return __asan_region_is_poisoned != nullptr; }

// Returns whether all bytes are still kGuard.
bool IsGuard(const uint8_t* bytes, size_t count);

// Returns zeroed memory. Aborts if mmap fails.
void* MapPages(size_t bytes);

// The stack of a CUDA thread or of the launching thread. Execution can leave it and return to it.
struct Context {
  void* stack_pointer = nullptr;
  const void* stack_bottom = nullptr;  // the lowest address
  size_t stack_bytes = 0;
  void* tsan_fiber = nullptr;
  void* asan_fake_stack = nullptr;
};

struct AsyncCopy {
  void* shared;
  const void* global;
  bool valid;
  uint32_t group;
  uint64_t number;  // index among the thread's copies
};

enum class Wait : uint8_t {
  kNothing,
  kBarrier,
  kNamedBarrier,
  kSharedBarrier,
  kWarp,
  kEarlierOperation,
  kReturned
};

// The last cp.async that wrote to 16 bytes of shared memory.
struct CopyMark {
  uint32_t thread;
  // The copy's number among all copies that have landed in the CTA, counted from 1. 0 if no copy
  // has landed at these 16 bytes.
  uint64_t landing;
};

struct Fiber : Context {
  uint3 index{};
  uint32_t thread = 0;
  uint32_t warp = 0;
  uint32_t lane = 0;

  Wait wait = Wait::kNothing;
  SourceLine at;
  // mask, operation and argument are valid while `wait` is kWarp.
  uint32_t mask = 0;
  const WarpOperation* operation = nullptr;
  void* argument = nullptr;

  std::vector<AsyncCopy> copies;  // copies in flight
  uint64_t num_copies = 0;        // number of copies started so far
  uint32_t committed_groups = 0;
  uint64_t fenced_landings = 0;  // num_landings_ when the thread last called FenceAsyncProxy
};

// The state of a warp's lanes. In each bit mask, bit i is for lane i.
struct Warp {
  uint32_t exists = 0;
  uint32_t returned = 0;
  uint32_t runnable = 0;  // excludes the running lane
  uint32_t waiting = 0;   // lanes that wait in a warp operation
  uint32_t memory_generation = 0;
};

// Rule for which warp runs next. Consecutive CTAs use different orders, since each order reveals
// different mistakes: in one order copying warps run far ahead of computing warps, in another
// copying warps run as late as possible.
enum class WarpOrder : uint8_t { kRound, kHighestFirst, kLowestFirst };
inline constexpr uint32_t kNumWarpOrders = 3;

struct NamedBarrier {
  uint32_t num_threads = 0;
  uint32_t num_arrived = 0;
  uint32_t generation = 0;
  uint32_t waiting[kMaxWarps] = {};  // waiting lanes of each warp
};

// A bulk copy in flight. It lands when a thread waits for the end of its mbarrier's phase.
struct BulkCopy {
  uint8_t* shared;
  const uint8_t* global;
  uint32_t bytes;
};

struct SharedBarrier {
  void* address = nullptr;
  uint32_t init_thread = 0;
  bool is_fenced = false;  // the thread that initialized it has called FenceAsyncProxy since
  uint32_t count = 0;
  uint32_t num_arrived = 0;
  uint32_t phase = 0;
  uint32_t waiting[kMaxWarps] = {};  // waiting lanes of each warp
  // An arrival that waits for copies: the phase ends only after the first num_copies copies that
  // the thread started have landed.
  struct LandingArrival {
    uint32_t thread;
    uint64_t num_copies;
  };
  uint32_t num_landing = 0;
  LandingArrival landing[kMaxThreads];
  // The current phase ends after bulk copies of expected_bytes have landed.
  uint32_t expected_bytes = 0;
  uint32_t bulk_bytes = 0;  // of the copies in flight
  uint32_t num_bulk_copies = 0;
  BulkCopy bulk_copies[kMaxBulkCopies];
};

// Flag of __tsan_switch_to_fiber: the switch does not order the two fibers' accesses.
inline constexpr unsigned kWithoutOrder = 1;

// An address that represents the end of a launch to TSan.
extern char tsan_launch_end;

class Emulator {
 public:
  ~Emulator();

  int Run(
      const char* kernel, dim3 grid, dim3 cta, size_t shared_bytes, ThreadBody body, void* context);

  // The public functions below must be called by the running CUDA thread.
  Fiber& running() { return *running_; }
  uint8_t* shared_memory() { return shared_; }
  bool InSharedMemory(const void* pointer, size_t bytes) const;

  BarrierResult SyncCta(bool predicate, SourceLine at);
  void RunWarpOperation(const WarpOperation& operation,
                        uint32_t mask,
                        void* argument,
                        SourceLine at);
  void ArriveAtNamedBarrier(uint32_t index, uint32_t num_threads, bool waits, SourceLine at);
  void InitSharedBarrier(void* address, uint32_t count, SourceLine at);
  void ArriveSharedBarrier(void* address, SourceLine at);
  void ArriveSharedBarrierAfterCopies(void* address, SourceLine at);
  void WaitSharedBarrier(void* address, uint32_t parity, SourceLine at);
  void ExpectBytes(void* address, uint32_t bytes, SourceLine at);
  void CopyBulk(
      void* shared, const void* global, uint32_t bytes, void* barrier_address, SourceLine at);
  void WaitForEarlierOperation(SourceLine at);
  void YieldToOtherWarps();
  void CopyAsync16(void* shared, const void* global, bool valid, SourceLine at);
  void WaitCopies(uint32_t max_pending);
  void FenceAsyncProxy();
  bool IsUnfenced(const uint8_t* shared);
  CtaWatch& watch() { return watch_; }
  CopyMark& MarkAt(const void* shared);
  WarpProducts& products(uint32_t warp) { return products_[warp]; }
  [[noreturn]] void Fail(const Fiber& thread, FaultKind kind, const char* what, SourceLine at);

 private:
  static void ThreadMain();

  void RunCta(uint3 index);
  void PrepareStacks();
  void PrepareSharedMemory();
  void ReleaseSharedMemory();
  void PrepareFiber(uint32_t thread);
  void DestroyTsanFibers();
  void ReleaseFibers();
  void CheckSight(Sight sight, SourceLine at);
  void CheckGuards();
  void CheckEnd();
  void FailAtEnd(FaultKind kind, const char* what);

  void Switch(Context& from, Context& to, bool from_is_done);
  void Return(Fiber& fiber);
  void Block(Fiber& fiber);
  Fiber* TakeRunnable(const Fiber& after);
  // Takes a runnable fiber. If no fiber is runnable, ends the CTA's wait for the previous operation
  // (EarlyPart), which can make fibers runnable. Returns null if no fiber can run.
  Fiber* TakeNext(const Fiber& after);
  void TakeFromRunnable(const Fiber& fiber);
  void MakeRunnable(uint32_t warp, uint32_t lanes);
  void MakeRunnable(uint32_t (&lanes_of_warps)[kMaxWarps]);
  SharedBarrier& SharedBarrierAt(void* address, SourceLine at);
  void TryEndPhase(SharedBarrier& barrier);
  static bool IsWaitedFor(const SharedBarrier& barrier);
  void CheckCopy(void* shared, const void* global, size_t bytes, SourceLine at);
  const uint8_t* SourceOfCopy(const void* shared, const void* global, size_t bytes);
  void CheckNoBulkCopyTo(const void* shared, size_t bytes, SourceLine at);
  void LandBulkCopies(SharedBarrier& barrier);
  void ReleaseLandingArrivals(const Fiber& fiber);
  void ReleaseBarrier(const Fiber* last);
  void* BarrierAddress(uint32_t generation) const;
  void* WarpAddress(uint32_t warp, uint32_t generation) const;
  void* NamedBarrierAddress(uint32_t barrier, uint32_t generation) const;
  template <typename Condition>
  void LandCopies(Fiber& fiber, Condition lands);
  void Land(const Fiber& fiber, const AsyncCopy& copy);

  void Append(const char* format, ...) __attribute__((format(printf, 2, 3)));
  void DescribeFault();

  // The current launch.
  const char* kernel_ = nullptr;
  dim3 grid_;
  dim3 cta_;
  uint32_t num_threads_ = 0;
  size_t shared_bytes_ = 0;
  ThreadBody body_ = nullptr;
  void* body_context_ = nullptr;
  Context launcher_;
  CtaWatch watch_;

  // The current CTA.
  size_t cta_number_ = 0;
  WarpOrder order_ = WarpOrder::kRound;
  Fiber* running_ = nullptr;
  uint32_t num_alive_ = 0;
  uint32_t num_at_barrier_ = 0;
  uint32_t barrier_generation_ = 0;
  BarrierResult barrier_results_[2] = {};
  SourceLine barrier_at_;
  Warp warps_[kMaxWarps];
  NamedBarrier named_barriers_[kNumNamedBarriers];
  // An array, because TSan would report races if fibers allocated memory (see WarpProducts).
  SharedBarrier shared_barriers_[kMaxSharedBarriers];
  uint32_t num_shared_barriers_ = 0;
  uint32_t num_bulk_copies_ = 0;  // in flight, for all mbarriers
  uint64_t num_landings_ = 0;
  CopyMark copy_marks_[kMaxSharedBytes / kCopyBytes];
  // Bytes that copies read before the wait for the previous operation (EarlyPart). They are at the
  // offsets that the copies' destinations have in shared memory.
  uint8_t early_sources_[kMaxSharedBytes];
  uint32_t runnable_warps_ = 0;
  EarlyPart early_;
  uint32_t waiting_for_earlier_[kMaxWarps] = {};  // lanes of each warp
  uint8_t* shared_ = nullptr;

  // Reused by the next CTA.
  WarpProducts* products_ = static_cast<WarpProducts*>(MapPages(sizeof(WarpProducts) * kMaxWarps));
  std::vector<Fiber> fibers_;
  uint8_t* stacks_ = nullptr;
  size_t stack_area_bytes_ = 0;
  // Holds a guard, shared memory and a guard; under ASan shared memory alone.
  uint8_t* shared_area_ = nullptr;
  size_t shared_area_bytes_ = 0;
  std::vector<void*> ended_tsan_fibers_;

  bool failed_ = false;
  Fault fault_{};
  char text_[4096];
  size_t text_bytes_ = 0;
};

template <typename Condition>
void Emulator::LandCopies(Fiber& fiber, Condition lands) {
  size_t kept = 0;
  for (const AsyncCopy& copy : fiber.copies) {
    if (lands(copy)) {
      Land(fiber, copy);
    } else {
      fiber.copies[kept++] = copy;
    }
  }
  fiber.copies.resize(kept);
}

// The emulator of this CPU thread's launch; null outside of a launch.
extern thread_local constinit Emulator* active;

// Returns `active`; ends the process outside of a launch.
Emulator& Active(SourceLine at);

// Called with each fault that ends a launch.
extern std::atomic<FaultHandler> fault_handler;

}  // namespace quire::gpu::emulator

#endif  // QUIRE_KERNELS_CUDA_EMULATOR_MACHINE_H_
