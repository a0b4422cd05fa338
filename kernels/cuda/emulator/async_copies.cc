#include <algorithm>
#include <cstring>

#include "kernels/cuda/emulator/machine.h"
#include "kernels/cuda/emulator/places.h"

namespace quire::gpu::emulator {

bool Emulator::InSharedMemory(const void* pointer, size_t bytes) const {
  const auto* begin = static_cast<const uint8_t*>(pointer);
  return begin >= shared_ && begin + bytes <= shared_ + shared_bytes_;
}

// Hardware can write the destination at any time before the wait. So the destination is poisoned
// until the wait: a thread that reads too early, or still needs the old contents, reads NaN.
void Emulator::CopyAsync16(void* shared, const void* global, bool valid, SourceLine at) {
  constexpr size_t kBytes = kCopyBytes;
  Fiber& me = *running_;
  CheckCopy(shared, valid ? global : nullptr, kBytes, at);
  memset(shared, kPoison, kBytes);
  const void* source = valid ? SourceOfCopy(shared, global, kBytes) : nullptr;
  me.copies.push_back(AsyncCopy{shared, source, valid, me.committed_groups, me.num_copies++});
}

// Hardware can read the source as soon as the copy is started. So a copy that is started before the
// wait for the previous operation reads at once, while that operation's results are poisoned.
const uint8_t* Emulator::SourceOfCopy(const void* shared, const void* global, size_t bytes) {
  if (!early_.is_running()) {
    return static_cast<const uint8_t*>(global);
  }
  uint8_t* kept = early_sources_ + (static_cast<const uint8_t*>(shared) - shared_);
  memcpy(kept, global, bytes);
  return kept;
}

// Checks a copy's addresses, and tells TSan of the accesses. global: null if nothing is read.
void Emulator::CheckCopy(void* shared, const void* global, size_t bytes, SourceLine at) {
  Fiber& me = *running_;
  me.at = at;
  CheckAligned(shared, kCopyBytes, at);
  if (!InSharedMemory(shared, bytes)) {
    Fail(me, FaultKind::kOutOfBounds, "asynchronous copy to outside of shared memory", at);
  }
  if (global != nullptr) {
    CheckAligned(global, kCopyBytes, at);
    if (UnderAsan() && __asan_region_is_poisoned(const_cast<void*>(global), bytes) != nullptr) {
      Fail(me, FaultKind::kOutOfBounds, "asynchronous copy from memory that is not allocated", at);
    }
    CheckSight(LookAt(global, bytes, ChangesAtEnqueue()), at);
    if (UnderTsan()) {
      __tsan_read_range(const_cast<void*>(global), bytes);
    }
  }
  CheckNoBulkCopyTo(shared, bytes, at);
  if (UnderTsan()) {
    __tsan_write_range(shared, bytes);
  }
}

void Emulator::CheckSight(Sight sight, SourceLine at) {
  if (sight == Sight::kNothing) {
    Fail(*running_,
         FaultKind::kEmptyPlace,
         "asynchronous copy from a place without a mapped block",
         at);
  }
  if (sight == Sight::kChanged) {
    Fail(*running_,
         FaultKind::kChangedPlace,
         "asynchronous copy from a place that was mapped anew while the kernel waited",
         at);
  }
}

void Emulator::Land(const Fiber& fiber, const AsyncCopy& copy) {
  constexpr size_t kBytes = kCopyBytes;
  if (UnderTsan()) {
    __tsan_write_range(copy.shared, kBytes);
  }
  MarkAt(copy.shared) = CopyMark{fiber.thread, ++num_landings_};
  if (copy.valid) {
    memcpy(copy.shared, copy.global, kBytes);
  } else {
    memset(copy.shared, 0, kBytes);
  }
}

void Emulator::WaitCopies(uint32_t max_pending) {
  Fiber& me = *running_;
  LandCopies(me,
             [&](const AsyncCopy& copy) { return copy.group + max_pending < me.committed_groups; });
  if (UnderTsan()) {
    ReleaseLandingArrivals(me);
  }
}

// Tells TSan that the thread's landed copies happen before its arrivals by
// ArriveSharedBarrierAfterCopies, because such an arrival counts only after its copies have landed.
// ArriveSharedBarrierAfterCopies cannot tell TSan: it runs before the copies have landed.
void Emulator::ReleaseLandingArrivals(const Fiber& fiber) {
  for (uint32_t i = 0; i < num_shared_barriers_; ++i) {
    const SharedBarrier& barrier = shared_barriers_[i];
    for (uint32_t k = 0; k < barrier.num_landing; ++k) {
      if (barrier.landing[k].thread == fiber.thread) {
        __tsan_release(barrier.address);
      }
    }
  }
}

void Emulator::FenceAsyncProxy() {
  running_->fenced_landings = num_landings_;
  for (uint32_t i = 0; i < num_shared_barriers_; ++i) {
    SharedBarrier& barrier = shared_barriers_[i];
    barrier.is_fenced = barrier.is_fenced || barrier.init_thread == running_->thread;
  }
}

CopyMark& Emulator::MarkAt(const void* shared) {
  return copy_marks_[static_cast<size_t>(static_cast<const uint8_t*>(shared) - shared_) /
                     kCopyBytes];
}

bool Emulator::IsUnfenced(const uint8_t* shared) {
  const CopyMark& mark = MarkAt(shared);
  if (fibers_[mark.thread].fenced_landings >= mark.landing) {
    return false;
  }
  const Fiber* const warp = &fibers_[running_->warp * kWarpSize];
  return std::any_of(warp, warp + kWarpSize, [&](const Fiber& reader) {
    return reader.fenced_landings < mark.landing;
  });
}

}  // namespace quire::gpu::emulator
