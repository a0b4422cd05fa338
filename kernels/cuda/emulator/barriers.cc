#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "kernels/cuda/emulator/machine.h"

namespace quire::gpu::emulator {
namespace {

bool SameLine(SourceLine a, SourceLine b) {
  return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

// Addresses that represent barriers to TSan; nothing is stored there. Each CTA of a launch has its
// own addresses, else one CTA's barriers would order another CTA's accesses.
constexpr size_t kTsanAddressesPerCta = 2 + 2 * kMaxWarps + 2 * kNumNamedBarriers;
constexpr size_t kTsanCtas = 4096;
char tsan_addresses[kTsanCtas * kTsanAddressesPerCta];

}  // namespace

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

void Emulator::ArriveAtNamedBarrier(uint32_t index,
                                    uint32_t num_threads,
                                    bool waits,
                                    SourceLine at) {
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
  barrier.address = address;
  barrier.init_thread = running_->thread;
  barrier.is_fenced = false;
  barrier.count = count;
  barrier.num_arrived = 0;
  barrier.phase = 0;
  for (uint32_t& lanes : barrier.waiting) {
    lanes = 0;
  }
  barrier.num_landing = 0;
  barrier.expected_bytes = 0;
  barrier.bulk_bytes = 0;
  barrier.num_bulk_copies = 0;
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
  TryEndPhase(barrier);
  ++barrier.num_arrived;
  const bool awaits_copies = barrier.num_landing > 0 || barrier.num_bulk_copies > 0;
  if (!awaits_copies || IsWaitedFor(barrier)) {
    TryEndPhase(barrier);
  }
  YieldToOtherWarps();
}

// The thread's copies land as late as possible: when a thread waits for the end of the phase, or at
// the first arrival in the next phase.
void Emulator::ArriveSharedBarrierAfterCopies(void* address, SourceLine at) {
  SharedBarrier& barrier = SharedBarrierAt(address, at);
  if (UnderTsan()) {
    __tsan_release(address);
  }
  TryEndPhase(barrier);
  if (barrier.num_landing == kMaxThreads) {
    Fail(*running_, FaultKind::kNoBarrier, "too many arrivals for the emulator", at);
  }
  barrier.landing[barrier.num_landing++] = {running_->thread, running_->num_copies};
  if (IsWaitedFor(barrier)) {
    TryEndPhase(barrier);
  }
  YieldToOtherWarps();
}

bool Emulator::IsWaitedFor(const SharedBarrier& barrier) {
  return std::any_of(std::begin(barrier.waiting), std::end(barrier.waiting), [](uint32_t lanes) {
    return lanes != 0;
  });
}

// Ends the phase if `count` threads have arrived and bulk copies of the expected bytes have
// started. Arrivals that wait for a thread's asynchronous copies count as arrived. When the phase
// ends, the emulator completes these copies and the bulk copies.
void Emulator::TryEndPhase(SharedBarrier& barrier) {
  if (barrier.num_arrived + barrier.num_landing < barrier.count ||
      barrier.bulk_bytes < barrier.expected_bytes) {
    return;
  }
  LandBulkCopies(barrier);
  if (barrier.num_landing > 0 && UnderTsan()) {
    __tsan_acquire(barrier.address);
  }
  for (uint32_t i = 0; i < barrier.num_landing; ++i) {
    Fiber& fiber = fibers_[barrier.landing[i].thread];
    LandCopies(fiber,
               [&](const AsyncCopy& copy) { return copy.number < barrier.landing[i].num_copies; });
  }
  if (barrier.num_landing > 0 && UnderTsan()) {
    __tsan_release(barrier.address);
  }
  barrier.num_arrived = 0;
  barrier.num_landing = 0;
  ++barrier.phase;
  MakeRunnable(barrier.waiting);
}

void Emulator::WaitSharedBarrier(void* address, uint32_t parity, SourceLine at) {
  Fiber& me = *running_;
  SharedBarrier& barrier = SharedBarrierAt(address, at);
  TryEndPhase(barrier);
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

// Makes all threads except `last` runnable. last: the running thread if it arrived last, or null if
// a thread completed the barrier by returning. REQUIRES: all threads are at the barrier.
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
    complete = other.mask == mask;  // false if the other lane waits for another mask
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

}  // namespace quire::gpu::emulator
