// StagingRing is pinned host memory for the inputs of steps. An asynchronous copy reads a step's
// inputs some time after the step was enqueued. So each step writes into the next slot, and a slot
// is reused only when the copy from it is done.
//
// Thread safety: one caller at a time (the executor thread).
// Errors:        a failing device ends the process, as in GpuBackend.
#ifndef QUIRE_KERNELS_GPU_STAGING_RING_H_
#define QUIRE_KERNELS_GPU_STAGING_RING_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/gpu_api.h"
#include "kernels/gpu/gpu_memory.h"

namespace quire {

class StagingRing {
 public:
  static constexpr size_t kNumSlots = 3;

  explicit StagingRing(const gpu::GpuApi& api);
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  // Makes room for `bytes` bytes of inputs in every slot. Waits for the copies under way. Errors:
  // kResourceExhausted, reason MEMORY.
  absl::Status Reserve(int64_t bytes);
  // Returns the next slot's memory. Waits while a copy from it is under way. REQUIRES: the inputs
  // take at most the reserved bytes.
  std::byte* Next();
  // Records that all reads of the current slot have been enqueued on the stream.
  void MarkRead(gpu::Stream stream);

 private:
  struct Slot {
    PinnedScratch memory;
    gpu::Event read = nullptr;
    bool is_in_use = false;
  };

  // Waits for the copy from the slot.
  void WaitFor(Slot& slot);

  const gpu::GpuApi& api_;
  std::array<Slot, kNumSlots> slots_;
  size_t current_ = 0;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_STAGING_RING_H_
