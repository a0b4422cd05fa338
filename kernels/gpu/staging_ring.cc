#include "kernels/gpu/staging_ring.h"

namespace quire {

StagingRing::StagingRing(const gpu::GpuApi& api)
    : api_(api),
      slots_{Slot{PinnedScratch(api)}, Slot{PinnedScratch(api)}, Slot{PinnedScratch(api)}} {
  for (Slot& slot : slots_) {
    RequireGpu(api_, api_.create_event(&slot.read), "create event");
  }
}

StagingRing::~StagingRing() {
  for (Slot& slot : slots_) {
    if (slot.is_in_use) {
      RequireGpu(api_, api_.synchronize_event(slot.read), "step");
    }
    api_.destroy_event(slot.read);
  }
}

std::byte* StagingRing::Next(int64_t bytes) {
  current_ = (current_ + 1) % kNumSlots;
  Slot& slot = slots_[current_];
  if (slot.is_in_use) {
    RequireGpu(api_, api_.synchronize_event(slot.read), "step");
    slot.is_in_use = false;
  }
  slot.memory.Reserve(bytes);
  return slot.memory.data();
}

void StagingRing::MarkRead(gpu::Stream stream) {
  RequireGpu(api_, api_.record_event(slots_[current_].read, stream), "record event");
  slots_[current_].is_in_use = true;
}

}  // namespace quire
