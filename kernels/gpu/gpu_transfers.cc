#include "kernels/gpu/gpu_transfers.h"

#include <algorithm>

#include "kernels/gpu/gpu_memory.h"

namespace quire {

GpuTransfers::GpuTransfers(const gpu::GpuApi& api, gpu::Stream compute)
    : api_(api), compute_(compute) {
  RequireGpu(api_, api_.create_stream(&to_host_), "create stream");
  RequireGpu(api_, api_.create_stream(&to_device_), "create stream");
  computed_ = TakeEvent();
}

GpuTransfers::~GpuTransfers() {
  Wait();
  free_events_.push_back(computed_);
  for (gpu::Event event : free_events_) {
    api_.destroy_event(event);
  }
  api_.destroy_stream(to_host_);
  api_.destroy_stream(to_device_);
}

gpu::Event GpuTransfers::TakeEvent() {
  gpu::Event event = nullptr;
  if (free_events_.empty()) {
    RequireGpu(api_, api_.create_event(&event), "create event");
    return event;
  }
  event = free_events_.back();
  free_events_.pop_back();
  return event;
}

void GpuTransfers::PlanCopies(const BlockTransferParams& params) {
  const bool to_host = params.direction == TransferDirection::kToHost;
  const int64_t block_bytes = params.cache.layout.block_bytes();
  to_.clear();
  from_.clear();
  bytes_.clear();
  for (size_t i = 0; i < params.blocks.size(); ++i) {
    const bool goes_on = i > 0 && params.blocks[i] == params.blocks[i - 1] + 1 &&
                         params.host_blocks[i] == params.host_blocks[i - 1] + 1;
    if (goes_on) {
      bytes_.back() += static_cast<size_t>(block_bytes);
      continue;
    }
    std::byte* on_device =
        static_cast<std::byte*>(params.cache.base) + params.blocks[i] * block_bytes;
    std::byte* on_host = params.host + params.host_blocks[i] * block_bytes;
    to_.push_back(to_host ? on_host : on_device);
    from_.push_back(to_host ? on_device : on_host);
    bytes_.push_back(static_cast<size_t>(block_bytes));
  }
}

TransferId GpuTransfers::Start(const BlockTransferParams& params) {
  gpu::Stream stream = params.direction == TransferDirection::kToHost ? to_host_ : to_device_;
  PlanCopies(params);
  RequireGpu(api_, api_.record_event(computed_, compute_), "record event");
  RequireGpu(api_, api_.wait_for_event(computed_, stream), "wait for event");
  RequireGpu(api_,
             api_.copy_many(to_.data(), from_.data(), bytes_.data(), to_.size(), stream),
             "swap blocks");
  gpu::Event done = TakeEvent();
  RequireGpu(api_, api_.record_event(done, stream), "record event");
  under_way_.push_back({.id = ++num_started_, .done = done});
  return num_started_;
}

void GpuTransfers::OrderAfter(TransferId transfer) {
  auto found = std::find_if(under_way_.begin(),
                            under_way_.end(),
                            [transfer](const UnderWay& other) { return other.id == transfer; });
  if (found != under_way_.end()) {
    RequireGpu(api_, api_.wait_for_event(found->done, compute_), "wait for event");
  }
}

void GpuTransfers::RetireFirst() {
  free_events_.push_back(under_way_.front().done);
  under_way_.pop_front();
}

TransferId GpuTransfers::Done() {
  while (!under_way_.empty()) {
    bool has_happened = false;
    RequireGpu(api_, api_.query_event(under_way_.front().done, &has_happened), "swap blocks");
    if (!has_happened) {
      break;
    }
    RetireFirst();
  }
  return under_way_.empty() ? num_started_ : under_way_.front().id - 1;
}

void GpuTransfers::Wait() {
  while (!under_way_.empty()) {
    RequireGpu(api_, api_.synchronize_event(under_way_.front().done), "swap blocks");
    RetireFirst();
  }
}

}  // namespace quire
