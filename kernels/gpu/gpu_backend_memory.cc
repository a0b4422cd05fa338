// The memory functions of GpuBackend: device memory, pinned memory, and the memory of steps.
#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <string>

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "kernels/gpu/gpu_backend_class.h"
#include "kernels/gpu/step_needs.h"

namespace quire {

std::optional<DeviceSpace> GpuBackend::space() const {
  gpu::DeviceInfo info;
  Require(api_.query_device(library_.device().index, &info), "query device");
  return DeviceSpace{.total_bytes = info.total_bytes, .free_bytes = info.free_bytes};
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> GpuBackend::Allocate(int64_t bytes) {
  void* data = nullptr;
  const int error = bytes <= 0 ? 1 : api_.allocate(&data, static_cast<size_t>(bytes));
  if (error != 0) {
    return Error(
        absl::StatusCode::kResourceExhausted,
        "MEMORY",
        "memory: the GPU cannot allocate so much (got " + std::to_string(bytes) + " bytes)");
  }
  // Drops the recorded graphs: they may hold addresses of older memory that the caller will free.
  graphs_.Clear();
  auto memory = std::make_unique<GpuMemory>(api_, stream_, data, bytes);
  QUIRE_RETURN_IF_ERROR(memory->Clear());
  return memory;
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> GpuBackend::AllocateHost(int64_t bytes) {
  void* data = nullptr;
  const int error = bytes <= 0 ? 1 : api_.allocate_pinned(&data, static_cast<size_t>(bytes));
  if (error != 0) {
    return Error(absl::StatusCode::kResourceExhausted,
                 "MEMORY",
                 "memory: the host cannot pin so much (got " + std::to_string(bytes) + " bytes)");
  }
  auto memory = std::make_unique<GpuHostMemory>(api_, data, bytes);
  QUIRE_RETURN_IF_ERROR(memory->Clear());
  return memory;
}

absl::Status GpuBackend::ReserveForSteps(const StepBounds& bounds) {
  const StepBounds covered = Cover(bounds_, bounds);
  return covered == bounds_ ? absl::OkStatus() : Reserve(covered);
}

absl::Status GpuBackend::Reserve(const StepBounds& bounds) {
  if (nccl_ != nullptr) {
    nccl_->Finish();  // freeing memory waits for the device, which hangs if a rank is lost
  }
  graphs_.Clear();
  ++num_moves_;
  bounds_ = {};  // after an error some of the memory is gone
  const StepNeeds needs = NeedsOf(bounds, shape_);
  QUIRE_RETURN_IF_ERROR(memory_.Reserve(needs));
  QUIRE_RETURN_IF_ERROR(sampler_.Reserve(vocab_size_, DecodeBucket(bounds.max_seqs)));
  memory_.ClearCounters(stream_);
  bounds_ = bounds;
  return absl::OkStatus();
}

void GpuBackend::CoverStep(const StepInputs& host) {
  const StepBounds step = {
      .max_tokens = host.num_tokens,
      .max_seqs = std::max(host.num_seqs, host.num_logits),
      .max_context_tokens =
          host.num_seqs == 0 ? 0 : *std::max_element(host.seq_lens, host.seq_lens + host.num_seqs),
      .max_blocks_per_seq = host.first_places == nullptr ? host.max_blocks_per_seq : 0};
  if (Cover(bounds_, step) == bounds_) {
    return;
  }
  // A bound that is too small grows to a power of two, so a slowly growing batch allocates rarely.
  const auto grown = [](int32_t reserved, int32_t needed) {
    return needed <= reserved ? reserved
                              : static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(needed)));
  };
  RequireMemory(
      Reserve({.max_tokens = grown(bounds_.max_tokens, step.max_tokens),
               .max_seqs = grown(bounds_.max_seqs, step.max_seqs),
               .max_context_tokens = grown(bounds_.max_context_tokens, step.max_context_tokens),
               .max_blocks_per_seq = grown(bounds_.max_blocks_per_seq, step.max_blocks_per_seq)}));
}

}  // namespace quire
