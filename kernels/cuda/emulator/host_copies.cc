// The emulator's memory copies (runtime.h): between the host and the device, and on the device.
#include <cstring>
#include <memory>
#include <utility>

#include "kernels/cuda/emulator/emulator.h"
#include "kernels/cuda/emulator/memory.h"
#include "kernels/cuda/emulator/streams.h"
#include "kernels/cuda/runtime.h"

namespace quire::gpu {
namespace emulator {
namespace {

// Returns false if the bytes are known not to be memory of the device. Returns true for memory
// outside of all allocations, because tests use plain arrays as device memory.
bool MayBeOn(int32_t device, const void* memory, size_t bytes) {
  const std::optional<Allocation> found = FindAllocation(memory);
  return !found.has_value() ||
         (found->device == device &&
          static_cast<const std::byte*>(memory) + bytes <= found->begin + found->bytes);
}

bool IsPinned(const void* memory, size_t bytes) {
  return FindAllocation(memory).has_value() && MayBeOn(kPinned, memory, bytes);
}

bool IsOn(int32_t device, const void* memory, size_t bytes) {
  return FindAllocation(memory).has_value() && MayBeOn(device, memory, bytes);
}

// Enqueues copies whose sources are read when the copies run.
int CopyOnStream(const char* name, StreamQueue* queue, std::vector<HostCopy> copies) {
  Operation operation = {.name = name};
  for (const HostCopy& copy : copies) {
    operation.references.Add(copy.to);
    operation.references.Add(copy.from);
  }
  if (queue->recording == nullptr) {
    queue->AddCopies(std::move(operation), std::move(copies));
    return 0;
  }
  operation.run = [copies = std::move(copies)] {
    for (const HostCopy& copy : copies) {
      memcpy(copy.to, copy.from, copy.bytes);
    }
    return 0;
  };
  return queue->Add(std::move(operation));
}

// Enqueues a copy, but reads its source now.
int CopyFromHeap(const char* name, StreamQueue* queue, const HostCopy& copy) {
  const auto* from = static_cast<const std::byte*>(copy.from);
  auto read = std::make_shared<std::vector<std::byte>>(from, from + copy.bytes);
  const HostCopy from_read = {.to = copy.to, .from = read->data(), .bytes = copy.bytes};
  Operation operation = {.name = name};
  operation.references.Add(copy.to);
  operation.run = [read] { return 0; };  // keeps the bytes alive
  queue->AddCopies(std::move(operation), {from_read});
  return 0;
}

}  // namespace
}  // namespace emulator

int CopyToDevice(void* device, const void* host, size_t bytes, Stream stream) {
  emulator::StreamQueue* queue = emulator::FindStream(stream);
  if (queue == nullptr) {
    return emulator::kErrorInvalidResourceHandle;
  }
  if (!emulator::MayBeOn(queue->device(), device, bytes)) {
    return emulator::kErrorInvalidValue;
  }
  if (bytes == 0) {
    return 0;
  }
  const emulator::HostCopy copy = {.to = device, .from = host, .bytes = bytes};
  if (emulator::IsPinned(host, bytes)) {
    return emulator::CopyOnStream("CopyToDevice", queue, {copy});
  }
  if (!emulator::MayBeOn(emulator::kPinned, host, bytes)) {
    return emulator::kErrorInvalidValue;
  }
  const int error = queue->RefuseIfRecorded();
  return error != 0 ? error : emulator::CopyFromHeap("CopyToDevice", queue, copy);
}

int CopyToHost(void* host, const void* device, size_t bytes, Stream stream) {
  emulator::StreamQueue* queue = emulator::FindStream(stream);
  if (queue == nullptr) {
    return emulator::kErrorInvalidResourceHandle;
  }
  if (!emulator::MayBeOn(queue->device(), device, bytes) ||
      !emulator::MayBeOn(emulator::kPinned, host, bytes)) {
    return emulator::kErrorInvalidValue;
  }
  if (bytes == 0) {
    return 0;
  }
  if (const int error = emulator::IsPinned(host, bytes) ? 0 : queue->RefuseIfRecorded();
      error != 0) {
    return error;
  }
  return emulator::CopyOnStream(
      "CopyToHost", queue, {{.to = host, .from = device, .bytes = bytes}});
}

// Refuses the default stream, as cudaMemcpyBatchAsync does.
int CopyMany(
    void* const* to, const void* const* from, const size_t* bytes, size_t count, Stream stream) {
  emulator::StreamQueue* queue = emulator::FindStream(stream);
  if (queue == nullptr) {
    return emulator::kErrorInvalidResourceHandle;
  }
  if (const int error = queue->RefuseIfRecorded(); error != 0) {
    return error;
  }
  if (queue->is_default()) {
    return emulator::kErrorInvalidValue;
  }
  std::vector<emulator::HostCopy> copies;
  for (size_t i = 0; i < count; ++i) {
    const bool to_host = emulator::IsPinned(to[i], bytes[i]);
    const void* on_device = to_host ? from[i] : to[i];
    if (!(to_host || emulator::IsPinned(from[i], bytes[i])) ||
        !emulator::IsOn(queue->device(), on_device, bytes[i])) {
      return emulator::kErrorInvalidValue;
    }
    copies.push_back({.to = to[i], .from = from[i], .bytes = bytes[i]});
  }
  return copies.empty() ? 0 : emulator::CopyOnStream("CopyMany", queue, std::move(copies));
}

int CopyOnDevice(void* to, const void* from, size_t bytes, Stream stream) {
  emulator::Operation operation = {.name = "CopyOnDevice", .run = [=] {
                                     memmove(to, from, bytes);
                                     return 0;
                                   }};
  operation.references.Add(to);
  operation.references.Add(from);
  return bytes == 0 ? 0 : emulator::Enqueue(stream, std::move(operation));
}

int CopyColumns(const ColumnsCopy& copy, Stream stream) {
  emulator::Operation operation = {.name = "CopyColumns", .run = [copy] {
                                     for (int64_t row = 0; row < copy.num_rows; ++row) {
                                       memcpy(copy.to + row * copy.to_stride,
                                              copy.from + row * copy.from_stride,
                                              static_cast<size_t>(copy.width) * sizeof(float));
                                     }
                                     return 0;
                                   }};
  operation.references.Add(copy.to);
  operation.references.Add(copy.from);
  return emulator::Enqueue(stream, std::move(operation));
}

int FillBytes(void* device, int byte, size_t bytes, Stream stream) {
  emulator::Operation operation = {.name = "FillBytes", .run = [=] {
                                     memset(device, byte, bytes);
                                     return 0;
                                   }};
  operation.references.Add(device);
  return bytes == 0 ? 0 : emulator::Enqueue(stream, std::move(operation));
}

}  // namespace quire::gpu
