#include "kernels/api/host_backend.h"

#include <cstring>
#include <string>

#include "common/base/error.h"

#include <sys/mman.h>

namespace quire {
namespace {

class HostMemory final : public DeviceMemory {
 public:
  HostMemory(void* data, int64_t size_bytes) : DeviceMemory(data, size_bytes) {}
  ~HostMemory() override { munmap(data(), static_cast<size_t>(size_bytes())); }

  absl::Status Clear() override {
    if (madvise(data(), static_cast<size_t>(size_bytes()), MADV_DONTNEED) != 0) {
      return Error(absl::StatusCode::kInternal, "MEMORY", "memory: cannot be cleared");
    }
    return absl::OkStatus();
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceMemory>> HostBackend::Allocate(int64_t bytes) {
  // Without MAP_NORESERVE, Linux could refuse a KV pool that is larger than the memory that is free
  // now. Only the operator's setting should limit the pool.
  void* data = bytes <= 0 ? MAP_FAILED
                          : mmap(nullptr,
                                 static_cast<size_t>(bytes),
                                 PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                                 -1,
                                 0);
  if (data == MAP_FAILED) {
    return Error(absl::StatusCode::kResourceExhausted,
                 "MEMORY",
                 "memory: cannot be mapped (got " + std::to_string(bytes) + " bytes)");
  }
  // Huge pages save page faults while the memory fills; a refusal costs speed only. The memory
  // holds users' text, so it stays out of core dumps.
  madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  madvise(data, static_cast<size_t>(bytes), MADV_DONTDUMP);
  return std::make_unique<HostMemory>(data, bytes);
}

void HostBackend::Upload(void* device, const void* host, int64_t bytes) {
  if (bytes > 0) {
    std::memcpy(device, host, static_cast<size_t>(bytes));
  }
}

void HostBackend::CopyBlock(const BlockTransferParams& params, size_t index) {
  const int64_t bytes = params.cache.layout.block_bytes();
  auto* on_device = static_cast<std::byte*>(params.cache.base) + params.blocks[index] * bytes;
  std::byte* on_host = params.host + params.host_blocks[index] * bytes;
  const bool to_host = params.direction == TransferDirection::kToHost;
  std::memcpy(
      to_host ? on_host : on_device, to_host ? on_device : on_host, static_cast<size_t>(bytes));
}

void HostBackend::Transfer(const BlockTransferParams& params) {
  for (size_t i = 0; i < params.blocks.size(); ++i) {
    CopyBlock(params, i);
  }
}

TransferId HostBackend::StartTransfer(const BlockTransferParams& params) {
  Transfer(params);
  return ++num_transfers_;
}

absl::Status HostBackend::JoinGroup(std::shared_ptr<Communicator> group) {
  group_ = std::move(group);
  return absl::OkStatus();
}

void HostBackend::AllReduce(const AllReduceParams& params) {
  auto* data = static_cast<float*>(params.data);
  const auto elements = static_cast<size_t>(params.num_rows * params.width);
  if (params.merge == Merge::kDisjoint) {
    group_->AllReduceBits(std::span(static_cast<uint32_t*>(params.data), elements));
  } else {
    group_->AllReduce(std::span(data, elements));
  }
  if (params.bias != nullptr) {
    for (int64_t row = 0; row < params.num_rows; ++row, data += params.width) {
      for (int64_t i = 0; i < params.width; ++i) {
        data[i] += params.bias[i];
      }
    }
  }
}

void HostBackend::Gather(const GatherParams& params) { row_gather_.Gather(params, *group_); }

}  // namespace quire
