#include "kernels/gpu/staging_ring.h"

#include "common/base/status_macros.h"

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
    WaitFor(slot);
    api_.destroy_event(slot.read);
  }
}

void StagingRing::WaitFor(Slot& slot) {
  if (slot.is_in_use) {
    RequireGpu(api_, api_.synchronize_event(slot.read), "step");
    slot.is_in_use = false;
  }
}

absl::Status StagingRing::Reserve(int64_t bytes) {
  for (Slot& slot : slots_) {
    WaitFor(slot);
    QUIRE_RETURN_IF_ERROR(slot.memory.Reserve(bytes));
  }
  return absl::OkStatus();
}

std::byte* StagingRing::Next() {
  current_ = (current_ + 1) % kNumSlots;
  Slot& slot = slots_[current_];
  WaitFor(slot);
  return slot.memory.data();
}

void StagingRing::MarkRead(gpu::Stream stream) {
  RequireGpu(api_, api_.record_event(slots_[current_].read, stream), "record event");
  slots_[current_].is_in_use = true;
}

}  // namespace quire
