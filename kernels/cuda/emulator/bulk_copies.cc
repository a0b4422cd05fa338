#include <algorithm>
#include <cstring>

#include "kernels/cuda/emulator/machine.h"

namespace quire::gpu::emulator {

void Emulator::ExpectBytes(void* address, uint32_t bytes, SourceLine at) {
  SharedBarrier& barrier = SharedBarrierAt(address, at);
  TryEndPhase(barrier);
  if (barrier.expected_bytes + bytes > kMaxExpectedBytes) {
    Fail(*running_, FaultKind::kWrongByteCount, "an mbarrier cannot count so many bytes", at);
  }
  barrier.expected_bytes += bytes;
}

// Poisons the destination until the copy lands, as CopyAsync16 does.
void Emulator::CopyBulk(
    void* shared, const void* global, uint32_t bytes, void* barrier_address, SourceLine at) {
  Fiber& me = *running_;
  SharedBarrier& barrier = SharedBarrierAt(barrier_address, at);
  if (bytes == 0 || bytes % kCopyBytes != 0) {
    Fail(me, FaultKind::kMisaligned, "the size of a bulk copy is not a multiple of 16 bytes", at);
  }
  if (!barrier.is_fenced) {
    Fail(me,
         FaultKind::kMissingFence,
         "the mbarrier of a bulk copy was not fenced after its initialization",
         at);
  }
  TryEndPhase(barrier);
  CheckCopy(shared, global, bytes, at);
  if (barrier.num_bulk_copies == kMaxBulkCopies) {
    Fail(me, FaultKind::kNoBarrier, "too many bulk copies for the emulator", at);
  }
  memset(shared, kPoison, bytes);
  barrier.bulk_copies[barrier.num_bulk_copies++] = {
      static_cast<uint8_t*>(shared), SourceOfCopy(shared, global, bytes), bytes};
  barrier.bulk_bytes += bytes;
  ++num_bulk_copies_;
  if (UnderTsan()) {
    __tsan_release(barrier_address);
  }
  if (IsWaitedFor(barrier)) {
    TryEndPhase(barrier);
  }
}

void Emulator::CheckNoBulkCopyTo(const void* shared, size_t bytes, SourceLine at) {
  const auto* begin = static_cast<const uint8_t*>(shared);
  for (uint32_t i = 0; i < num_shared_barriers_ && num_bulk_copies_ > 0; ++i) {
    const SharedBarrier& barrier = shared_barriers_[i];
    for (uint32_t k = 0; k < barrier.num_bulk_copies; ++k) {
      const BulkCopy& copy = barrier.bulk_copies[k];
      if (begin < copy.shared + copy.bytes && copy.shared < begin + bytes) {
        Fail(*running_,
             FaultKind::kCopyOverlap,
             "asynchronous copy to bytes that a bulk copy in flight will write",
             at);
      }
    }
  }
}

// Lands all bulk copies of the barrier's phase, which is about to end.
void Emulator::LandBulkCopies(SharedBarrier& barrier) {
  if (barrier.bulk_bytes > barrier.expected_bytes) {
    Fail(*running_,
         FaultKind::kWrongByteCount,
         "bulk copies have more bytes than their mbarrier expects",
         running_->at);
  }
  if (barrier.num_bulk_copies > 0 && UnderTsan()) {
    __tsan_acquire(barrier.address);
  }
  for (uint32_t i = 0; i < barrier.num_bulk_copies; ++i) {
    const BulkCopy& copy = barrier.bulk_copies[i];
    if (UnderTsan()) {
      __tsan_write_range(copy.shared, copy.bytes);
    }
    const auto is_poison = [](uint8_t byte) { return byte == kPoison; };
    if (!std::all_of(copy.shared, copy.shared + copy.bytes, is_poison)) {
      Fail(*running_,
           FaultKind::kChangedInFlight,
           "bytes were written while a bulk copy to them was in flight",
           running_->at);
    }
    memcpy(copy.shared, copy.global, copy.bytes);
    // Products of a warpgroup may read the bytes without a fence, since no thread has written them.
    for (uint32_t offset = 0; offset < copy.bytes; offset += kCopyBytes) {
      MarkAt(copy.shared + offset) = CopyMark{};
    }
  }
  if (barrier.num_bulk_copies > 0 && UnderTsan()) {
    __tsan_release(barrier.address);
  }
  num_bulk_copies_ -= barrier.num_bulk_copies;
  barrier.num_bulk_copies = 0;
  barrier.bulk_bytes = 0;
  barrier.expected_bytes = 0;
}

}  // namespace quire::gpu::emulator
