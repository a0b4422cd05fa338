// Emulator is the machine behind emulator.h: a CTA's threads as fibers, shared memory, barriers,
// asynchronous copies, and what is found to be wrong with them. Its parts are in launch.cc (CTAs,
// stacks, shared memory), schedule.cc (which thread runs), barriers.cc, async_copies.cc and
// faults.cc; emulator.cc is what kernels call.
//
// These files are compiled without sanitizers, whatever the rest is compiled with: the machine
// moves between stacks, and its own bookkeeping must not order, for TSan, what the kernel does not
// order. It talks to the sanitizers' runtimes where they are linked.
//
// Thread safety: one Emulator for each thread that launches.
#ifndef QUIRE_KERNELS_CUDA_EMULATOR_MACHINE_H_
#define QUIRE_KERNELS_CUDA_EMULATOR_MACHINE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

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

// Where shared memory begins in its window: no multiple of what swizzle patterns are aligned to.
inline constexpr uint32_t kSharedWindow = 0x480;

// Stacks are a little apart from a power of two: else the hot ends of all of them would share the
// same few cache sets.
inline constexpr size_t kStackBytes = 256 * 1024;
inline constexpr size_t kStackStride = kStackBytes + 17 * 64;

// Bytes that a kernel must not touch, before and behind shared memory and at the end of each stack.
inline constexpr size_t kGuardBytes = 128;
inline constexpr uint8_t kGuard = 0xA5;

inline bool UnderTsan() { return __tsan_create_fiber != nullptr; }
inline bool UnderAsan() { return __asan_region_is_poisoned != nullptr; }

// Whether the bytes are as they were put there.
bool IsGuard(const uint8_t* bytes, size_t count);

// Zeroed; ends the process when there are none.
void* MapPages(size_t bytes);

// A stack that can be left and returned to: a CUDA thread's, or the launching thread's own.
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
  uint64_t number;  // of the thread's, from 0
};

enum class Wait : uint8_t { kNothing, kBarrier, kNamedBarrier, kSharedBarrier, kWarp, kReturned };

// What cp.async wrote to 16 bytes of shared memory.
struct CopyMark {
  uint32_t thread;
  uint64_t landing;  // counted from 1 over the CTA; 0: nothing landed here
};

struct Fiber : Context {
  uint3 index{};
  uint32_t thread = 0;
  uint32_t warp = 0;
  uint32_t lane = 0;

  Wait wait = Wait::kNothing;
  SourceLine at;
  uint32_t mask = 0;  // these three while wait is kWarp
  const WarpOperation* operation = nullptr;
  void* argument = nullptr;

  std::vector<AsyncCopy> copies;  // in flight
  uint64_t num_copies = 0;        // started
  uint32_t committed_groups = 0;
  uint64_t fenced_landings = 0;  // what had landed at the thread's last fence of the async proxy
};

// Bit i is lane i.
struct Warp {
  uint32_t exists = 0;
  uint32_t returned = 0;
  uint32_t runnable = 0;  // not the lane that runs
  uint32_t waiting = 0;   // in a warp operation
  uint32_t memory_generation = 0;
};

// Which warp is next. CTAs take turns, as each order shows other mistakes: who copies may be far
// ahead of who computes, or as late as can be.
enum class WarpOrder : uint8_t { kRound, kHighestFirst, kLowestFirst };
inline constexpr uint32_t kNumWarpOrders = 3;

struct NamedBarrier {
  uint32_t num_threads = 0;
  uint32_t num_arrived = 0;
  uint32_t generation = 0;
  uint32_t waiting[kMaxWarps] = {};  // lanes
};

struct SharedBarrier {
  void* address = nullptr;
  uint32_t count = 0;
  uint32_t num_arrived = 0;
  uint32_t phase = 0;
  uint32_t waiting[kMaxWarps] = {};  // lanes
  // Arrivals that come with the landing of a thread's first num_copies copies.
  struct LandingArrival {
    uint32_t thread;
    uint64_t num_copies;
  };
  uint32_t num_landing = 0;
  LandingArrival landing[kMaxThreads];
};

// Flag of __tsan_switch_to_fiber: what was done on one fiber is not before what the next one does.
inline constexpr unsigned kWithoutOrder = 1;

// Stands for the end of a launch towards TSan.
extern char tsan_launch_end;

class Emulator {
 public:
  ~Emulator();

  int Run(
      const char* kernel, dim3 grid, dim3 cta, size_t shared_bytes, ThreadBody body, void* context);

  // The rest is called on a running thread.
  Fiber& running() { return *running_; }
  uint8_t* shared_memory() { return shared_; }
  bool InSharedMemory(const void* pointer, size_t bytes) const;

  BarrierResult SyncCta(bool predicate, SourceLine at);
  void RunWarpOperation(const WarpOperation& operation,
                        uint32_t mask,
                        void* argument,
                        SourceLine at);
  void ComeToNamedBarrier(uint32_t index, uint32_t num_threads, bool waits, SourceLine at);
  void InitSharedBarrier(void* address, uint32_t count, SourceLine at);
  void ArriveSharedBarrier(void* address, SourceLine at);
  void ArriveSharedBarrierAfterCopies(void* address, SourceLine at);
  void WaitSharedBarrier(void* address, uint32_t parity, SourceLine at);
  void YieldToOtherWarps();
  void CopyAsync16(void* shared, const void* global, bool valid, SourceLine at);
  void WaitCopies(uint32_t max_pending);
  void FenceAsyncProxy();
  bool IsUnfenced(const uint8_t* shared);
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
  void TakeFromRunnable(const Fiber& fiber);
  void MakeRunnable(uint32_t warp, uint32_t lanes);
  void MakeRunnable(uint32_t (&lanes_of_warps)[kMaxWarps]);
  SharedBarrier& SharedBarrierAt(void* address, SourceLine at);
  void TryEndPhase(SharedBarrier& barrier);
  static bool IsWaitedFor(const SharedBarrier& barrier);
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

  // Of the launch.
  const char* kernel_ = nullptr;
  dim3 grid_;
  dim3 cta_;
  uint32_t num_threads_ = 0;
  size_t shared_bytes_ = 0;
  ThreadBody body_ = nullptr;
  void* body_context_ = nullptr;
  Context launcher_;

  // Of the CTA.
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
  // In place, as WarpProducts are.
  SharedBarrier shared_barriers_[kMaxSharedBarriers];
  uint32_t num_shared_barriers_ = 0;
  uint64_t num_landings_ = 0;
  CopyMark copy_marks_[kMaxSharedBytes / kCopyBytes];
  uint32_t runnable_warps_ = 0;
  uint8_t* shared_ = nullptr;

  // Kept from CTA to CTA.
  WarpProducts* products_ = static_cast<WarpProducts*>(MapPages(sizeof(WarpProducts) * kMaxWarps));
  std::vector<Fiber> fibers_;
  uint8_t* stacks_ = nullptr;
  size_t stack_area_bytes_ = 0;
  uint8_t* shared_area_ = nullptr;  // guard, shared memory, guard; under ASan shared memory alone
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

// The machine of the launch that this thread runs; null outside of one.
extern thread_local constinit Emulator* active;

// The same for what may only be called during a launch.
Emulator& Active(SourceLine at);

// Called with the fault that ends a launch.
extern std::atomic<FaultHandler> fault_handler;

}  // namespace quire::gpu::emulator

#endif  // QUIRE_KERNELS_CUDA_EMULATOR_MACHINE_H_
