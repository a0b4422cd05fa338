#include "kernels/cuda/emulator/emulator.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "kernels/cuda/emulator/machine.h"

// NOLINTBEGIN(readability-identifier-naming): CUDA's names.
thread_local constinit uint3 threadIdx{};
thread_local constinit uint3 blockIdx{};
thread_local constinit dim3 blockDim{};
thread_local constinit dim3 gridDim{};
// NOLINTEND(readability-identifier-naming)

namespace quire::gpu::emulator {

thread_local constinit Emulator* active = nullptr;

Emulator& Active(SourceLine at) {
  if (active == nullptr) {
    ReportFault(
        FaultKind::kOutsideOfLaunch, "a device function was called outside of a launch", at);
  }
  return *active;
}

namespace {

std::atomic<size_t> shared_bytes_limit = kMaxSharedBytes;

}  // namespace

size_t SharedBytesLimit() { return shared_bytes_limit; }

void SetSharedBytesLimit(size_t bytes) { shared_bytes_limit = std::min(bytes, kMaxSharedBytes); }

int CheckLaunch(dim3 grid, dim3 cta, size_t shared_bytes) {
  if (active != nullptr) {
    ReportFault(FaultKind::kOutsideOfLaunch, "a kernel launched a kernel", SourceLine());
  }
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
  return shared_bytes > SharedBytesLimit() ? kErrorInvalidValue : 0;
}

int RunLaunch(
    const char* kernel, dim3 grid, dim3 cta, size_t shared_bytes, ThreadBody body, void* context) {
  static thread_local std::unique_ptr<Emulator> emulator = std::make_unique<Emulator>();
  active = emulator.get();
  const int error = emulator->Run(kernel, grid, cta, shared_bytes, body, context);
  active = nullptr;
  return error;
}

void WaitForEarlierOperation(SourceLine at) { Active(at).WaitForEarlierOperation(at); }

void NoteAtomic(const void* address, size_t bytes) {
  Active(SourceLine()).watch().Exempt(address, bytes);
}

void NoteAcquireRelease(const void* address, size_t bytes) {
  NoteAtomic(address, bytes);
  Active(SourceLine()).watch().AcquireRelease();
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
  Active(at).ArriveAtNamedBarrier(barrier, num_threads, true, at);
}

void ArriveNamedBarrier(uint32_t barrier, uint32_t num_threads, SourceLine at) {
  Active(at).ArriveAtNamedBarrier(barrier, num_threads, false, at);
}

void InitSharedBarrier(void* barrier, uint32_t count, SourceLine at) {
  Active(at).InitSharedBarrier(barrier, count, at);
}

void ArriveSharedBarrier(void* barrier, SourceLine at) {
  Active(at).ArriveSharedBarrier(barrier, at);
}

void ArriveSharedBarrierAfterCopies(void* barrier, SourceLine at) {
  Active(at).ArriveSharedBarrierAfterCopies(barrier, at);
}

void WaitSharedBarrier(void* barrier, uint32_t parity, SourceLine at) {
  Active(at).WaitSharedBarrier(barrier, parity, at);
}

void ExpectBytes(void* barrier, uint32_t bytes, SourceLine at) {
  Active(at).ExpectBytes(barrier, bytes, at);
}

void CopyBulk(void* shared, const void* global, uint32_t bytes, void* barrier, SourceLine at) {
  Active(at).CopyBulk(shared, global, bytes, barrier, at);
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
