#include "kernels/cuda/emulator/emulator.h"

#include <stdlib.h>

#include <atomic>
#include <bit>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cuda/emulator/warp_operation.h"
#include "kernels/cuda/emulator/warpgroup_operation.h"

#include <sys/mman.h>

// This file is compiled without sanitizers, whatever the rest is compiled with: it moves between
// stacks, and its own bookkeeping must not order, for TSan, what the kernel does not order. It
// talks to the sanitizers' runtimes where they are linked.
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

thread_local constinit uint3 threadIdx{};
thread_local constinit uint3 blockIdx{};
thread_local constinit dim3 blockDim{};
thread_local constinit dim3 gridDim{};
// NOLINTEND(readability-identifier-naming, bugprone-reserved-identifier)

// Saves the callee-saved registers on the running stack, its top at *save, and continues on the
// stack whose top is to, where the same was done before.
extern "C" void quire_emulator_switch(void** save, void* to);
asm(R"(
.text
.type quire_emulator_switch, @function
quire_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size quire_emulator_switch, . - quire_emulator_switch
)");

namespace quire::gpu::emulator {
namespace {

constexpr uint32_t kMaxWarps = kMaxThreads / kWarpSize;
constexpr uint32_t kMaxSharedBarriers = 64;
constexpr uint8_t kPoison = 0xFF;  // NaN in every type
constexpr size_t kCopyBytes = 16;

// Where shared memory begins in its window: no multiple of what swizzle patterns are aligned to.
constexpr uint32_t kSharedWindow = 0x480;

// Stacks are a little apart from a power of two: else the hot ends of all of them would share the
// same few cache sets.
constexpr size_t kStackBytes = 256 * 1024;
constexpr size_t kStackStride = kStackBytes + 17 * 64;

// Bytes that a kernel must not touch, before and behind shared memory and at the end of each stack.
constexpr size_t kGuardBytes = 128;
constexpr uint8_t kGuard = 0xA5;

bool UnderTsan() { return __tsan_create_fiber != nullptr; }
bool UnderAsan() { return __asan_region_is_poisoned != nullptr; }

bool IsGuard(const uint8_t* bytes, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (bytes[i] != kGuard) {
      return false;
    }
  }
  return true;
}

void DefaultFaultHandler(const Fault& fault) {
  fputs(fault.text, stderr);
  fflush(stderr);
  abort();
}

std::atomic<FaultHandler> fault_handler{&DefaultFaultHandler};

// ---- Threads ----

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
};

enum class Wait : uint8_t { kNothing, kBarrier, kNamedBarrier, kSharedBarrier, kWarp, kReturned };

// What cp.async wrote to 16 bytes of shared memory.
struct CopyMark {
  bool is_written;
  uint32_t thread;
  uint32_t num_fences;  // of the thread when the copy landed; products may read after the next
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

  std::vector<AsyncCopy> copies;
  uint32_t committed_groups = 0;
  uint32_t num_fences = 0;  // of the async proxy
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
constexpr uint32_t kNumWarpOrders = 3;

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
};

bool SameLine(SourceLine a, SourceLine b) {
  return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

// Addresses that stand for barriers towards TSan; nothing is stored there. Each CTA of a launch has
// its own, or one CTA's barriers would order another's accesses.
constexpr size_t kTsanAddressesPerCta = 2 + 2 * kMaxWarps + 2 * kNumNamedBarriers;
constexpr size_t kTsanCtas = 4096;
char tsan_addresses[kTsanCtas * kTsanAddressesPerCta];
char tsan_launch_end;

// TSan has room for about 8000 threads. Fibers that have ended are destroyed at the end of the
// launch, since their numbers, used again, would hide races between CTAs; in a large launch,
// earlier.
constexpr size_t kMaxTsanFibers = 5000;

// Flag of __tsan_switch_to_fiber: what was done on one fiber is not before what the next one does.
constexpr unsigned kWithoutOrder = 1;

void* MapPages(size_t bytes) {
  void* pages = mmap(
      nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) {
    perror("emulator: mmap");
    abort();
  }
  return pages;
}

}  // namespace

// ---- The machine ----

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
  void ComeToNamedBarrier(uint32_t barrier, uint32_t num_threads, bool waits, SourceLine at);
  void InitSharedBarrier(void* address, uint32_t count, SourceLine at);
  void ArriveSharedBarrier(void* address, SourceLine at);
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
  void ReleaseBarrier(const Fiber* last);
  void* BarrierAddress(uint32_t generation) const;
  void* WarpAddress(uint32_t warp, uint32_t generation) const;
  void* NamedBarrierAddress(uint32_t barrier, uint32_t generation) const;
  void Land(const AsyncCopy& copy);

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

namespace {

thread_local constinit Emulator* active = nullptr;  // during a launch

Emulator& Active(SourceLine at) {
  if (active == nullptr) {
    ReportFault(
        FaultKind::kOutsideOfLaunch, "a device function was called outside of a launch", at);
  }
  return *active;
}

}  // namespace

Emulator::~Emulator() {
  munmap(products_, sizeof(WarpProducts) * kMaxWarps);
  if (stacks_ != nullptr) {
    munmap(stacks_, stack_area_bytes_);
  }
  if (shared_area_ != nullptr && !UnderAsan()) {
    munmap(shared_area_, shared_area_bytes_);
  }
}

// ---- Launch ----

int Emulator::Run(
    const char* kernel, dim3 grid, dim3 cta, size_t shared_bytes, ThreadBody body, void* context) {
  kernel_ = kernel;
  grid_ = grid;
  cta_ = cta;
  num_threads_ = cta.x * cta.y * cta.z;
  shared_bytes_ = shared_bytes;
  body_ = body;
  body_context_ = context;
  launcher_ = Context();
  if (UnderTsan()) {
    launcher_.tsan_fiber = __tsan_get_current_fiber();
  }
  failed_ = false;
  if (fibers_.size() < num_threads_) {
    fibers_.resize(num_threads_);
  }
  gridDim = grid;
  blockDim = cta;
  for (uint32_t z = 0; z < grid.z && !failed_; ++z) {
    for (uint32_t y = 0; y < grid.y && !failed_; ++y) {
      for (uint32_t x = 0; x < grid.x && !failed_; ++x) {
        RunCta(uint3{x, y, z});
      }
    }
  }
  if (UnderTsan()) {
    __tsan_acquire(&tsan_launch_end);
    DestroyTsanFibers();
  }
  return failed_ ? kErrorLaunchFailure : 0;
}

void Emulator::RunCta(uint3 index) {
  ++cta_number_;
  num_alive_ = num_threads_;
  num_at_barrier_ = 0;
  barrier_generation_ = 0;
  blockIdx = index;
  order_ = static_cast<WarpOrder>((index.x + index.y + index.z) % kNumWarpOrders);
  PrepareStacks();
  PrepareSharedMemory();
  for (Warp& warp : warps_) {
    warp = Warp();
  }
  for (NamedBarrier& barrier : named_barriers_) {
    barrier = NamedBarrier();
  }
  num_shared_barriers_ = 0;
  for (uint32_t warp = 0; warp < (num_threads_ + kWarpSize - 1) / kWarpSize; ++warp) {
    products_[warp].Reset();
  }
  memset(copy_marks_, 0, sizeof(CopyMark) * ((shared_bytes_ + kCopyBytes - 1) / kCopyBytes));
  runnable_warps_ = 0;
  for (uint32_t thread = 0; thread < num_threads_; ++thread) {
    PrepareFiber(thread);
  }
  running_ = &fibers_[0];
  TakeFromRunnable(fibers_[0]);
  threadIdx = running_->index;
  Switch(launcher_, *running_, false);

  if (!failed_) {
    CheckGuards();
    CheckEnd();
  }
  if (failed_) {
    ReleaseFibers();
  }
  ReleaseSharedMemory();
  if (UnderTsan()) {
    for (uint32_t thread = 0; thread < num_threads_; ++thread) {
      ended_tsan_fibers_.push_back(fibers_[thread].tsan_fiber);
    }
    if (ended_tsan_fibers_.size() > kMaxTsanFibers) {
      DestroyTsanFibers();
    }
  }
  if (failed_) {
    DescribeFault();
    active = nullptr;  // the handler may leave by an exception
    fault_handler.load()(fault_);
  }
}

void Emulator::PrepareStacks() {
  const size_t needed = kStackStride * num_threads_;
  // TSan takes a stack that is used again for one stack that two threads write to.
  if (stacks_ != nullptr && (stack_area_bytes_ < needed || UnderTsan())) {
    munmap(stacks_, stack_area_bytes_);
    stacks_ = nullptr;
  }
  if (stacks_ == nullptr) {
    stacks_ = static_cast<uint8_t*>(MapPages(needed));
    stack_area_bytes_ = needed;
  }
  if (UnderAsan()) {  // frames of threads that did not return leave red zones behind
    __asan_unpoison_memory_region(stacks_, needed);
  }
}

void Emulator::PrepareSharedMemory() {
  if (UnderAsan()) {
    // Of the exact size, so that ASan knows its end, and new for each CTA, so that no pointer into
    // the last CTA's works.
    void* area = nullptr;
    if (posix_memalign(&area, 128, shared_bytes_) != 0) {
      abort();
    }
    shared_area_ = static_cast<uint8_t*>(area);
    shared_ = shared_area_;
  } else {
    const size_t needed = shared_bytes_ + 2 * kGuardBytes;
    if (shared_area_ == nullptr || shared_area_bytes_ < needed) {
      if (shared_area_ != nullptr) {
        munmap(shared_area_, shared_area_bytes_);
      }
      shared_area_ = static_cast<uint8_t*>(MapPages(needed));
      shared_area_bytes_ = needed;
    }
    shared_ = shared_area_ + kGuardBytes;
    memset(shared_area_, kGuard, kGuardBytes);
    memset(shared_ + shared_bytes_, kGuard, kGuardBytes);
  }
  memset(shared_, kPoison, shared_bytes_);
}

void Emulator::ReleaseSharedMemory() {
  if (UnderAsan()) {
    free(shared_area_);
    shared_area_ = nullptr;
  } else if (UnderTsan()) {  // what the next CTA does to its own must not meet what this one did
    munmap(shared_area_, shared_area_bytes_);
    shared_area_ = nullptr;
  }
}

void Emulator::PrepareFiber(uint32_t thread) {
  constexpr size_t kReservedCopies = 128;
  Fiber& fiber = fibers_[thread];
  fiber.thread = thread;
  fiber.warp = thread / kWarpSize;
  fiber.lane = thread % kWarpSize;
  fiber.index = uint3{thread % cta_.x, thread / cta_.x % cta_.y, thread / (cta_.x * cta_.y)};
  fiber.wait = Wait::kNothing;
  fiber.copies.clear();
  fiber.copies.reserve(kReservedCopies);
  fiber.committed_groups = 0;
  fiber.num_fences = 0;
  fiber.asan_fake_stack = nullptr;
  if (UnderTsan()) {
    fiber.tsan_fiber = __tsan_create_fiber(0);
  }

  uint8_t* bottom = stacks_ + kStackStride * thread;
  fiber.stack_bottom = bottom;
  fiber.stack_bytes = kStackBytes;
  memset(bottom, kGuard, sizeof(uint64_t));
  // As if quire_emulator_switch had been called by something that ThreadMain returns to.
  constexpr int kSavedRegisters = 6;
  auto** top = reinterpret_cast<void**>(bottom + kStackBytes);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&ThreadMain);
  for (int i = 0; i < kSavedRegisters; ++i) {
    *--top = nullptr;
  }
  fiber.stack_pointer = top;

  warps_[fiber.warp].exists |= 1u << fiber.lane;
  MakeRunnable(fiber.warp, 1u << fiber.lane);
}

void Emulator::DestroyTsanFibers() {
  for (void* fiber : ended_tsan_fibers_) {
    __tsan_destroy_fiber(fiber);
  }
  ended_tsan_fibers_.clear();
}

// What the threads that will not go on have done is before the end of the launch, as what the
// others have done.
void Emulator::ReleaseFibers() {
  if (!UnderTsan()) {
    return;
  }
  for (uint32_t thread = 0; thread < num_threads_; ++thread) {
    __tsan_switch_to_fiber(fibers_[thread].tsan_fiber, kWithoutOrder);
    __tsan_release(&tsan_launch_end);
  }
  __tsan_switch_to_fiber(launcher_.tsan_fiber, kWithoutOrder);
  __tsan_acquire(&tsan_launch_end);
}

void Emulator::CheckGuards() {
  if (UnderAsan()) {
    return;
  }
  if (!IsGuard(shared_area_, kGuardBytes) || !IsGuard(shared_ + shared_bytes_, kGuardBytes)) {
    FailAtEnd(FaultKind::kSharedOverrun, "bytes next to the CTA's shared memory were written");
  }
}

// What no single thread did wrong.
void Emulator::CheckEnd() {
  constexpr uint32_t kWarpsOfGroup = 4;
  for (const NamedBarrier& barrier : named_barriers_) {
    if (barrier.num_arrived != 0) {
      FailAtEnd(FaultKind::kIncompleteBarrier, "not all threads of a named barrier came to it");
    }
  }
  for (uint32_t warp = 0; warp < (num_threads_ + kWarpSize - 1) / kWarpSize; ++warp) {
    const WarpProducts& first = products_[warp / kWarpsOfGroup * kWarpsOfGroup];
    if (products_[warp].num_started() != first.num_started()) {
      FailAtEnd(FaultKind::kDivergentWarp, "a wgmma was not started by all warps of its warpgroup");
    }
  }
}

void Emulator::FailAtEnd(FaultKind kind, const char* what) {
  failed_ = true;
  fault_ = Fault{kind, kernel_, blockIdx, fibers_[0].index, SourceLine(), what};
}

// ---- Scheduling ----

// A thread runs until it must wait; then the next of its warp runs, and when all of them wait,
// another warp, by the CTA's order.

void Emulator::ThreadMain() {
  Emulator& emulator = *active;
  if (UnderAsan()) {
    // The first thread to run has come from the launcher's stack, whose limits ASan knows.
    Context& launcher = emulator.launcher_;
    const void** bottom = launcher.stack_bytes == 0 ? &launcher.stack_bottom : nullptr;
    size_t* bytes = launcher.stack_bytes == 0 ? &launcher.stack_bytes : nullptr;
    __sanitizer_finish_switch_fiber(nullptr, bottom, bytes);
  }
  emulator.body_(emulator.body_context_);
  emulator.Return(*emulator.running_);
  __builtin_unreachable();
}

void Emulator::Switch(Context& from, Context& to, bool from_is_done) {
  if (UnderTsan()) {
    __tsan_switch_to_fiber(to.tsan_fiber, kWithoutOrder);
  }
  if (UnderAsan()) {
    __sanitizer_start_switch_fiber(
        from_is_done ? nullptr : &from.asan_fake_stack, to.stack_bottom, to.stack_bytes);
  }
  quire_emulator_switch(&from.stack_pointer, to.stack_pointer);
  if (UnderAsan()) {
    __sanitizer_finish_switch_fiber(from.asan_fake_stack, nullptr, nullptr);
  }
}

void Emulator::Return(Fiber& fiber) {
  if (!fiber.copies.empty()) {
    Fail(fiber,
         FaultKind::kCopyInFlight,
         "a thread returned with asynchronous copies in flight",
         fiber.at);
  }
  if (products_[fiber.warp].in_flight()) {
    Fail(fiber, FaultKind::kProductInFlight, "a thread returned with wgmma in flight", fiber.at);
  }
  if (!IsGuard(static_cast<const uint8_t*>(fiber.stack_bottom), sizeof(uint64_t))) {
    Fail(fiber, FaultKind::kStackOverflow, "the thread's stack overflowed", fiber.at);
  }
  Warp& warp = warps_[fiber.warp];
  const uint32_t bit = 1u << fiber.lane;
  for (uint32_t lanes = warp.waiting; lanes != 0; lanes &= lanes - 1) {
    const Fiber& other =
        fibers_[fiber.warp * kWarpSize + static_cast<uint32_t>(std::countr_zero(lanes))];
    if ((other.mask & bit) != 0) {
      fiber.wait = Wait::kReturned;
      Fail(other, FaultKind::kLaneMissing, "a lane of the mask has returned", other.at);
    }
  }
  fiber.wait = Wait::kReturned;
  warp.returned |= bit;
  --num_alive_;
  if (UnderTsan()) {
    __tsan_release(&tsan_launch_end);
  }
  if (num_alive_ == 0) {
    Switch(fiber, launcher_, true);
    __builtin_unreachable();
  }
  if (num_at_barrier_ == num_alive_) {
    ReleaseBarrier(nullptr);
  }
  Fiber* next = TakeRunnable(fiber);
  if (next == nullptr) {
    Fail(fiber,
         FaultKind::kDeadlock,
         "the threads that have not returned wait for each other",
         fiber.at);
  }
  running_ = next;
  threadIdx = next->index;
  Switch(fiber, *next, true);
}

// Until somebody makes the fiber runnable.
void Emulator::Block(Fiber& fiber) {
  Fiber* next = TakeRunnable(fiber);
  if (next == nullptr) {
    Fail(fiber, FaultKind::kDeadlock, "all threads wait for each other", fiber.at);
  }
  running_ = next;
  threadIdx = next->index;
  Switch(fiber, *next, false);
}

void Emulator::YieldToOtherWarps() {
  Fiber& me = *running_;
  const uint32_t own = 1u << me.warp;
  const uint32_t own_is_runnable = runnable_warps_ & own;
  const uint32_t own_lanes = warps_[me.warp].runnable;
  if (runnable_warps_ == own_is_runnable) {
    return;
  }
  runnable_warps_ &= ~own;
  warps_[me.warp].runnable = 0;
  Fiber* next = TakeRunnable(me);
  MakeRunnable(me.warp, own_lanes | 1u << me.lane);
  running_ = next;
  threadIdx = next->index;
  Switch(me, *next, false);
}

Fiber* Emulator::TakeRunnable(const Fiber& after) {
  // The lowest set bit above position, or the lowest of all.
  auto next_bit = [](uint32_t bits, uint32_t position) {
    const uint32_t above = bits & ~((2u << position) - 1);
    return static_cast<uint32_t>(std::countr_zero(above != 0 ? above : bits));
  };
  if (runnable_warps_ == 0) {
    return nullptr;
  }
  const bool same_warp = warps_[after.warp].runnable != 0;
  uint32_t warp_index = after.warp;
  if (!same_warp) {
    const auto lowest = static_cast<uint32_t>(std::countr_zero(runnable_warps_));
    const auto highest = 31 - static_cast<uint32_t>(std::countl_zero(runnable_warps_));
    warp_index = order_ == WarpOrder::kRound          ? next_bit(runnable_warps_, after.warp)
                 : order_ == WarpOrder::kHighestFirst ? highest
                                                      : lowest;
  }
  const uint32_t lane =
      next_bit(warps_[warp_index].runnable, same_warp ? after.lane : kWarpSize - 1);
  Fiber& next = fibers_[warp_index * kWarpSize + lane];
  TakeFromRunnable(next);
  return &next;
}

void Emulator::TakeFromRunnable(const Fiber& fiber) {
  Warp& warp = warps_[fiber.warp];
  warp.runnable &= ~(1u << fiber.lane);
  if (warp.runnable == 0) {
    runnable_warps_ &= ~(1u << fiber.warp);
  }
}

void Emulator::MakeRunnable(uint32_t warp, uint32_t lanes) {
  if (lanes != 0) {
    warps_[warp].runnable |= lanes;
    runnable_warps_ |= 1u << warp;
  }
}

// Those that waited; nobody does then.
void Emulator::MakeRunnable(uint32_t (&lanes_of_warps)[kMaxWarps]) {
  for (uint32_t warp = 0; warp < kMaxWarps; ++warp) {
    MakeRunnable(warp, lanes_of_warps[warp]);
    lanes_of_warps[warp] = 0;
  }
}

// ---- Barriers and warp operations ----

void* Emulator::BarrierAddress(uint32_t generation) const {
  return tsan_addresses + cta_number_ % kTsanCtas * kTsanAddressesPerCta + (generation & 1);
}

void* Emulator::WarpAddress(uint32_t warp, uint32_t generation) const {
  return tsan_addresses + cta_number_ % kTsanCtas * kTsanAddressesPerCta + 2 + 2 * warp +
         (generation & 1);
}

void* Emulator::NamedBarrierAddress(uint32_t barrier, uint32_t generation) const {
  return tsan_addresses + cta_number_ % kTsanCtas * kTsanAddressesPerCta + 2 + 2 * kMaxWarps +
         2 * barrier + (generation & 1);
}

void Emulator::ComeToNamedBarrier(uint32_t index, uint32_t num_threads, bool waits, SourceLine at) {
  Fiber& me = *running_;
  me.at = at;
  if (index == 0 || index >= kNumNamedBarriers || num_threads == 0 ||
      num_threads % kWarpSize != 0) {
    Fail(me, FaultKind::kDivergentBarrier, "no named barrier has this number or size", at);
  }
  NamedBarrier& barrier = named_barriers_[index];
  if (barrier.num_arrived != 0 && barrier.num_threads != num_threads) {
    Fail(me, FaultKind::kDivergentBarrier, "threads of one named barrier expect other numbers", at);
  }
  const uint32_t generation = barrier.generation;
  barrier.num_threads = num_threads;
  if (UnderTsan()) {
    __tsan_release(NamedBarrierAddress(index, generation));
  }
  const bool completes = ++barrier.num_arrived == num_threads;
  if (completes) {
    barrier.num_arrived = 0;
    ++barrier.generation;
    MakeRunnable(barrier.waiting);
  }
  if (waits && !completes) {
    barrier.waiting[me.warp] |= 1u << me.lane;
    me.wait = Wait::kNamedBarrier;
    Block(me);
    me.wait = Wait::kNothing;
  } else if (!waits) {
    YieldToOtherWarps();
  }
  if (waits && UnderTsan()) {
    __tsan_acquire(NamedBarrierAddress(index, generation));
  }
}

void Emulator::InitSharedBarrier(void* address, uint32_t count, SourceLine at) {
  CheckAligned(address, sizeof(uint64_t), at);
  if (!InSharedMemory(address, sizeof(uint64_t)) || count == 0) {
    Fail(*running_, FaultKind::kNoBarrier, "mbarrier.init outside of shared memory or of 0", at);
  }
  if (UnderTsan()) {
    __tsan_write_range(address, sizeof(uint64_t));
  }
  if (num_shared_barriers_ == kMaxSharedBarriers) {
    Fail(*running_, FaultKind::kNoBarrier, "too many mbarriers for the emulator", at);
  }
  SharedBarrier& barrier = shared_barriers_[num_shared_barriers_++];
  barrier = SharedBarrier();
  barrier.address = address;
  barrier.count = count;
}

SharedBarrier& Emulator::SharedBarrierAt(void* address, SourceLine at) {
  running_->at = at;
  for (uint32_t i = 0; i < num_shared_barriers_; ++i) {
    SharedBarrier& barrier = shared_barriers_[i];
    if (barrier.address == address) {
      if (UnderTsan()) {
        __tsan_read_range(address, sizeof(uint64_t));
      }
      return barrier;
    }
  }
  Fail(*running_, FaultKind::kNoBarrier, "there is no mbarrier at this address", at);
}

void Emulator::ArriveSharedBarrier(void* address, SourceLine at) {
  SharedBarrier& barrier = SharedBarrierAt(address, at);
  if (UnderTsan()) {
    __tsan_release(address);
  }
  if (++barrier.num_arrived == barrier.count) {
    barrier.num_arrived = 0;
    ++barrier.phase;
    MakeRunnable(barrier.waiting);
  }
  YieldToOtherWarps();
}

void Emulator::WaitSharedBarrier(void* address, uint32_t parity, SourceLine at) {
  Fiber& me = *running_;
  SharedBarrier& barrier = SharedBarrierAt(address, at);
  while ((barrier.phase & 1) == parity) {
    barrier.waiting[me.warp] |= 1u << me.lane;
    me.wait = Wait::kSharedBarrier;
    Block(me);
    me.wait = Wait::kNothing;
  }
  if (UnderTsan()) {
    __tsan_acquire(address);
  }
}

BarrierResult Emulator::SyncCta(bool predicate, SourceLine at) {
  Fiber& me = *running_;
  const uint32_t generation = barrier_generation_;
  BarrierResult& result = barrier_results_[generation & 1];
  if (num_at_barrier_ == 0) {
    barrier_at_ = at;
    result = BarrierResult{false, true, 0};
  }
  me.wait = Wait::kBarrier;
  me.at = at;
  if (!SameLine(at, barrier_at_)) {
    Fail(me, FaultKind::kDivergentBarrier, "threads of one CTA are in different __syncthreads", at);
  }
  result.any = result.any || predicate;
  result.all = result.all && predicate;
  result.count += predicate ? 1 : 0;
  if (UnderTsan()) {
    __tsan_release(BarrierAddress(generation));
  }
  if (++num_at_barrier_ == num_alive_) {
    ReleaseBarrier(&me);
  } else {
    Block(me);
  }
  me.wait = Wait::kNothing;
  if (UnderTsan()) {
    __tsan_acquire(BarrierAddress(generation));
  }
  return result;
}

// All threads are at the barrier; last is the one that runs.
void Emulator::ReleaseBarrier(const Fiber* last) {
  num_at_barrier_ = 0;
  ++barrier_generation_;
  const uint32_t num_warps = (num_threads_ + kWarpSize - 1) / kWarpSize;
  for (uint32_t warp = 0; warp < num_warps; ++warp) {
    MakeRunnable(warp, warps_[warp].exists & ~warps_[warp].returned);
  }
  if (last != nullptr) {
    TakeFromRunnable(*last);
  }
}

void Emulator::RunWarpOperation(const WarpOperation& operation,
                                uint32_t mask,
                                void* argument,
                                SourceLine at) {
  Fiber& me = *running_;
  Warp& warp = warps_[me.warp];
  const uint32_t generation = warp.memory_generation;
  me.wait = Wait::kWarp;
  me.at = at;
  me.mask = mask;
  me.operation = &operation;
  me.argument = argument;
  if ((mask >> me.lane & 1) == 0) {
    Fail(me, FaultKind::kNotInMask, "the calling lane is not in the mask", at);
  }
  if ((mask & (~warp.exists | warp.returned)) != 0) {
    Fail(me, FaultKind::kLaneMissing, "a lane of the mask has returned or never was", at);
  }
  if (operation.orders_memory && UnderTsan()) {
    __tsan_release(WarpAddress(me.warp, generation));
  }
  warp.waiting |= 1u << me.lane;

  bool complete = (warp.waiting & mask) == mask;
  void* arguments[kWarpSize];
  for (uint32_t lanes = mask; complete && lanes != 0; lanes &= lanes - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(lanes));
    const Fiber& other = fibers_[me.warp * kWarpSize + lane];
    complete = other.mask == mask;  // else that lane still waits for lanes of its own
    if (complete &&
        (other.operation != &operation || (operation.from_one_line && !SameLine(other.at, at)))) {
      Fail(me, FaultKind::kDivergentWarp, "lanes of one mask are in different warp operations", at);
    }
    arguments[lane] = other.argument;
  }
  if (complete) {
    if (operation.run != nullptr) {
      operation.run(arguments, mask);
    }
    warp.waiting &= ~mask;
    warp.memory_generation += operation.orders_memory ? 1 : 0;
    MakeRunnable(me.warp, mask & ~(1u << me.lane));
  } else {
    Block(me);
  }
  me.wait = Wait::kNothing;
  if (operation.orders_memory && UnderTsan()) {
    __tsan_acquire(WarpAddress(me.warp, generation));
  }
}

// ---- Asynchronous copies ----

bool Emulator::InSharedMemory(const void* pointer, size_t bytes) const {
  const auto* begin = static_cast<const uint8_t*>(pointer);
  return begin >= shared_ && begin + bytes <= shared_ + shared_bytes_;
}

// From here to the wait the hardware may write at any time: the destination is poison meanwhile, so
// that who reads too early, or still reads what was there, reads NaN.
void Emulator::CopyAsync16(void* shared, const void* global, bool valid, SourceLine at) {
  constexpr size_t kBytes = kCopyBytes;
  Fiber& me = *running_;
  me.at = at;
  CheckAligned(shared, kBytes, at);
  if (!InSharedMemory(shared, kBytes)) {
    Fail(me, FaultKind::kOutOfBounds, "asynchronous copy to outside of shared memory", at);
  }
  if (valid) {
    CheckAligned(global, kBytes, at);
    if (UnderAsan() && __asan_region_is_poisoned(const_cast<void*>(global), kBytes) != nullptr) {
      Fail(me, FaultKind::kOutOfBounds, "asynchronous copy from memory that is not allocated", at);
    }
    if (UnderTsan()) {
      __tsan_read_range(const_cast<void*>(global), kBytes);
    }
  }
  if (UnderTsan()) {
    __tsan_write_range(shared, kBytes);
  }
  memset(shared, kPoison, kBytes);
  me.copies.push_back(AsyncCopy{shared, global, valid, me.committed_groups});
}

void Emulator::Land(const AsyncCopy& copy) {
  constexpr size_t kBytes = kCopyBytes;
  if (UnderTsan()) {
    __tsan_write_range(copy.shared, kBytes);
  }
  MarkAt(copy.shared) = CopyMark{true, running_->thread, running_->num_fences};
  if (copy.valid) {
    memcpy(copy.shared, copy.global, kBytes);
  } else {
    memset(copy.shared, 0, kBytes);
  }
}

void Emulator::WaitCopies(uint32_t max_pending) {
  Fiber& me = *running_;
  size_t kept = 0;
  for (const AsyncCopy& copy : me.copies) {
    if (copy.group + max_pending < me.committed_groups) {
      Land(copy);
    } else {
      me.copies[kept++] = copy;
    }
  }
  me.copies.resize(kept);
}

void Emulator::FenceAsyncProxy() { ++running_->num_fences; }

CopyMark& Emulator::MarkAt(const void* shared) {
  return copy_marks_[static_cast<size_t>(static_cast<const uint8_t*>(shared) - shared_) /
                     kCopyBytes];
}

bool Emulator::IsUnfenced(const uint8_t* shared) {
  const CopyMark& mark = MarkAt(shared);
  return mark.is_written && fibers_[mark.thread].num_fences == mark.num_fences;
}

// ---- Faults ----

void Emulator::Append(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int bytes = vsnprintf(text_ + text_bytes_, sizeof(text_) - text_bytes_, format, arguments);
  va_end(arguments);
  if (bytes > 0) {
    text_bytes_ += static_cast<size_t>(bytes);
    text_bytes_ = text_bytes_ < sizeof(text_) ? text_bytes_ : sizeof(text_) - 1;
  }
}

// On the launcher's stack: what a thread writes here would be, for TSan, in no order with the
// handler.
void Emulator::DescribeFault() {
  constexpr int kMaxOthers = 8;
  text_bytes_ = 0;
  Append("%s in kernel %s, CTA (%u, %u, %u)",
         fault_.text,
         kernel_,
         fault_.cta.x,
         fault_.cta.y,
         fault_.cta.z);
  if (fault_.at.line != 0) {
    Append(", thread (%u, %u, %u) at %s:%d",
           fault_.thread.x,
           fault_.thread.y,
           fault_.thread.z,
           fault_.at.file,
           fault_.at.line);
  }
  Append("\n");
  int others = 0;
  for (uint32_t i = 0; i < num_threads_ && others < kMaxOthers; ++i) {
    const Fiber& other = fibers_[i];
    if (other.wait == Wait::kNothing || other.wait == Wait::kReturned) {
      continue;
    }
    ++others;
    Append("  thread (%u, %u, %u), warp %u, lane %u, waits in ",
           other.index.x,
           other.index.y,
           other.index.z,
           other.warp,
           other.lane);
    if (other.wait == Wait::kBarrier) {
      Append("__syncthreads");
    } else if (other.wait == Wait::kNamedBarrier) {
      Append("a named barrier");
    } else if (other.wait == Wait::kSharedBarrier) {
      Append("an mbarrier");
    } else {
      Append("%s of mask %08x", other.operation->name, other.mask);
    }
    Append(" at %s:%d\n", other.at.file, other.at.line);
  }
  Append("  (%u of %u threads have returned)\n", num_threads_ - num_alive_, num_threads_);
  fault_.text = text_;
}

void Emulator::Fail(const Fiber& thread, FaultKind kind, const char* what, SourceLine at) {
  failed_ = true;
  fault_ = Fault{kind, kernel_, blockIdx, thread.index, at, what};
  Switch(*running_, launcher_, true);
  __builtin_unreachable();
}

FaultHandler SetFaultHandler(FaultHandler handler) {
  return fault_handler.exchange(handler != nullptr ? handler : &DefaultFaultHandler);
}

void ReportFault(FaultKind kind, const char* what, SourceLine at) {
  if (active == nullptr) {
    fprintf(stderr, "%s at %s:%d\n", what, at.file, at.line);
    abort();
  }
  active->Fail(active->running(), kind, what, at);
}

// ---- What kernels call ----

int RunLaunch(
    const char* kernel, dim3 grid, dim3 cta, size_t shared_bytes, ThreadBody body, void* context) {
  constexpr uint32_t kMaxGrid = 0x7FFFFFFF;
  constexpr uint32_t kMaxGridYZ = 0xFFFF;
  constexpr uint32_t kMaxCtaZ = 64;
  const bool grid_fits = grid.x >= 1 && grid.x <= kMaxGrid && grid.y >= 1 && grid.y <= kMaxGridYZ &&
                         grid.z >= 1 && grid.z <= kMaxGridYZ;
  const bool cta_fits = cta.x >= 1 && cta.y >= 1 && cta.z >= 1 && cta.x <= kMaxThreads &&
                        cta.y <= kMaxThreads && cta.z <= kMaxCtaZ &&
                        uint64_t{cta.x} * cta.y * cta.z <= kMaxThreads;
  if (!grid_fits || !cta_fits) {
    return kErrorInvalidConfiguration;
  }
  if (shared_bytes > kMaxSharedBytes) {
    return kErrorInvalidValue;
  }
  if (active != nullptr) {
    ReportFault(FaultKind::kOutsideOfLaunch, "a kernel launched a kernel", SourceLine());
  }
  static thread_local std::unique_ptr<Emulator> emulator = std::make_unique<Emulator>();
  active = emulator.get();
  const int error = emulator->Run(kernel, grid, cta, shared_bytes, body, context);
  active = nullptr;
  return error;
}

uint8_t* SharedMemory() { return active->shared_memory(); }

BarrierResult SyncCta(bool predicate, SourceLine at) { return Active(at).SyncCta(predicate, at); }

uint32_t Lane() { return Active(SourceLine()).running().lane; }

void RunWarpOperation(const WarpOperation& operation,
                      uint32_t mask,
                      void* argument,
                      SourceLine at) {
  Active(at).RunWarpOperation(operation, mask, argument, at);
}

bool InSharedMemory(const void* pointer, size_t bytes, SourceLine at) {
  return Active(at).InSharedMemory(pointer, bytes);
}

void CopyAsync16(void* shared, const void* global, bool valid, SourceLine at) {
  Active(at).CopyAsync16(shared, global, valid, at);
}

void SyncNamedBarrier(uint32_t barrier, uint32_t num_threads, SourceLine at) {
  Active(at).ComeToNamedBarrier(barrier, num_threads, true, at);
}

void ArriveNamedBarrier(uint32_t barrier, uint32_t num_threads, SourceLine at) {
  Active(at).ComeToNamedBarrier(barrier, num_threads, false, at);
}

void InitSharedBarrier(void* barrier, uint32_t count, SourceLine at) {
  Active(at).InitSharedBarrier(barrier, count, at);
}

void ArriveSharedBarrier(void* barrier, SourceLine at) {
  Active(at).ArriveSharedBarrier(barrier, at);
}

void WaitSharedBarrier(void* barrier, uint32_t parity, SourceLine at) {
  Active(at).WaitSharedBarrier(barrier, parity, at);
}

void FenceAsyncProxy() { Active(SourceLine()).FenceAsyncProxy(); }

uint32_t SharedAddress(const void* pointer) {
  return kSharedWindow + static_cast<uint32_t>(static_cast<const uint8_t*>(pointer) -
                                               Active(SourceLine()).shared_memory());
}

const uint8_t* AtSharedAddress(uint32_t address, size_t bytes) {
  Emulator& emulator = Active(SourceLine());
  const uint8_t* pointer =
      emulator.shared_memory() + (ptrdiff_t{address} - ptrdiff_t{kSharedWindow});
  return emulator.InSharedMemory(pointer, bytes) ? pointer : nullptr;
}

bool IsUnfenced(const uint8_t* shared) { return Active(SourceLine()).IsUnfenced(shared); }

void RecordRead(const void* pointer, size_t bytes) {
  if (UnderTsan()) {
    __tsan_read_range(const_cast<void*>(pointer), bytes);
  }
}

uint32_t RunningWarp(SourceLine at) { return Active(at).running().warp; }

void YieldToOtherWarps() { Active(SourceLine()).YieldToOtherWarps(); }

WarpProducts& ProductsOf(uint32_t warp) { return Active(SourceLine()).products(warp); }

void CommitCopies() { ++Active(SourceLine()).running().committed_groups; }

void WaitCopies(uint32_t max_pending) { Active(SourceLine()).WaitCopies(max_pending); }

}  // namespace quire::gpu::emulator
