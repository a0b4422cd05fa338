#include <cstring>

#include "kernels/cuda/emulator/machine.h"

namespace quire::gpu::emulator {

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

}  // namespace quire::gpu::emulator
