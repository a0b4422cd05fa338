#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/cuda/emulator/machine.h"

#include <sys/mman.h>

namespace quire::gpu::emulator {
namespace {

// If possible, ended fibers are kept until the end of the launch: TSan reuses the numbers of
// destroyed fibers, and then misses races between CTAs. But TSan has room for only about 8000
// threads. So ended fibers are destroyed earlier when there are more than kMaxTsanFibers of them.
constexpr size_t kMaxTsanFibers = 5000;

}  // namespace

bool IsGuard(const uint8_t* bytes, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (bytes[i] != kGuard) {
      return false;
    }
  }
  return true;
}

void* MapPages(size_t bytes) {
  void* pages = mmap(
      nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) {
    perror("emulator: mmap");
    abort();
  }
  return pages;
}

char tsan_launch_end;

Emulator::~Emulator() {
  munmap(products_, sizeof(WarpProducts) * kMaxWarps);
  if (stacks_ != nullptr) {
    munmap(stacks_, stack_area_bytes_);
  }
  if (shared_area_ != nullptr && !UnderAsan()) {
    munmap(shared_area_, shared_area_bytes_);
  }
}

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
  watch_.Begin(ReferencesNow());
  const uint64_t num_ctas = uint64_t{grid.x} * grid.y * grid.z;
  for (uint64_t i = 0; i < num_ctas && !failed_; ++i) {
    const uint64_t number = NthCta(i, num_ctas);
    RunCta(uint3{static_cast<uint32_t>(number % grid.x),
                 static_cast<uint32_t>(number / grid.x % grid.y),
                 static_cast<uint32_t>(number / grid.x / grid.y)});
  }
  watch_.End();
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
  num_bulk_copies_ = 0;
  num_landings_ = 0;
  for (uint32_t warp = 0; warp < (num_threads_ + kWarpSize - 1) / kWarpSize; ++warp) {
    products_[warp].Reset();
  }
  memset(copy_marks_, 0, sizeof(CopyMark) * ((shared_bytes_ + kCopyBytes - 1) / kCopyBytes));
  runnable_warps_ = 0;
  for (uint32_t thread = 0; thread < num_threads_; ++thread) {
    PrepareFiber(thread);
  }
  if (StartsEarly()) {
    early_.Begin();
  }
  running_ = &fibers_[0];
  TakeFromRunnable(fibers_[0]);
  threadIdx = running_->index;
  Switch(launcher_, *running_, false);

  if (early_.is_running()) {
    early_.End();
    if (!failed_) {
      FailAtEnd(FaultKind::kNoEarlierWait,
                "no thread of a kernel that starts early waited for the operation before it");
    }
  }
  for (uint32_t& lanes : waiting_for_earlier_) {
    lanes = 0;
  }
  if (!failed_) {
    CheckGuards();
    CheckEnd();
  }
  if (!failed_ && !watch_.EndCta()) {
    FailAtEnd(FaultKind::kWrittenTwice, "two CTAs of a launch wrote to the same global memory");
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
    active = nullptr;  // reset before the handler runs, because the handler may throw
    fault_handler.load()(fault_);
  }
}

void Emulator::PrepareStacks() {
  const size_t needed = kStackStride * num_threads_;
  // Under TSan each CTA gets new stacks, else TSan would report races between threads that use one
  // stack in turn.
  if (stacks_ != nullptr && (stack_area_bytes_ < needed || UnderTsan())) {
    munmap(stacks_, stack_area_bytes_);
    stacks_ = nullptr;
  }
  if (stacks_ == nullptr) {
    stacks_ = static_cast<uint8_t*>(MapPages(needed));
    stack_area_bytes_ = needed;
  }
  if (UnderAsan()) {  // threads that did not return have left red zones on their stacks
    __asan_unpoison_memory_region(stacks_, needed);
  }
}

void Emulator::PrepareSharedMemory() {
  if (UnderAsan()) {
    // The memory has the exact size, so that ASan knows where it ends. Each CTA gets new memory, so
    // that pointers into the previous CTA's memory fault.
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
  } else if (UnderTsan()) {  // under TSan each CTA gets new memory, as it gets new stacks
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
  fiber.num_copies = 0;
  fiber.copies.reserve(kReservedCopies);
  fiber.committed_groups = 0;
  fiber.fenced_landings = 0;
  fiber.asan_fake_stack = nullptr;
  if (UnderTsan()) {
    fiber.tsan_fiber = __tsan_create_fiber(0);
  }

  uint8_t* bottom = stacks_ + kStackStride * thread;
  fiber.stack_bottom = bottom;
  fiber.stack_bytes = kStackBytes;
  memset(bottom, kGuard, sizeof(uint64_t));
  // Prepares the stack so that quire_emulator_switch returns to the start of ThreadMain.
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

// Tells TSan that the accesses of abandoned threads, too, happen before the end of the launch.
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

// Called at the end of the CTA. Checks conditions that no thread can check when it returns.
void Emulator::CheckEnd() {
  constexpr uint32_t kWarpsOfGroup = 4;
  for (const NamedBarrier& barrier : named_barriers_) {
    if (barrier.num_arrived != 0) {
      FailAtEnd(FaultKind::kIncompleteBarrier, "not all threads of a named barrier came to it");
    }
  }
  if (num_bulk_copies_ != 0) {
    FailAtEnd(FaultKind::kCopyInFlight, "the CTA ended with bulk copies in flight");
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

}  // namespace quire::gpu::emulator
