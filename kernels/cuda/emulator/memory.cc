#include "kernels/cuda/emulator/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "kernels/cuda/emulator/emulator.h"
#include "kernels/cuda/emulator/streams.h"
#include "kernels/cuda/runtime.h"

namespace quire::gpu {
namespace emulator {
namespace {

struct MemoryMap {
  std::mutex mutex;
  std::map<const std::byte*, Allocation> by_begin;
  uint64_t num_made = 0;
  int64_t used_bytes[kNumDevices + 1] = {};  // one entry per device, then one for pinned memory

  int64_t& Used(int32_t device) { return used_bytes[device == kPinned ? kNumDevices : device]; }
  void Add(Allocation allocation) {
    allocation.number = ++num_made;
    Used(allocation.device) += static_cast<int64_t>(allocation.used_bytes);
    by_begin[allocation.begin] = allocation;
  }
  void Remove(const Allocation& allocation) {
    Used(allocation.device) -= static_cast<int64_t>(allocation.used_bytes);
    by_begin.erase(allocation.begin);
  }
};

// Never destroyed, because static objects of a program can free memory after main returns.
MemoryMap& Map() {
  static auto& map = *new MemoryMap();
  return map;
}

}  // namespace

// Allocates the exact size, so that ASan knows where the memory ends.
int AllocateMemory(int32_t device, void** pointer, size_t bytes) {
  constexpr size_t kAlignment = 256;
  constexpr int kPoison = 0xFF;
  *pointer = nullptr;
  if (bytes == 0) {
    return 0;
  }
  MemoryMap& map = Map();
  const std::lock_guard<std::mutex> lock(map.mutex);
  const bool fits = static_cast<int64_t>(bytes) <= kDeviceBytes - map.Used(device);
  if (!fits || posix_memalign(pointer, kAlignment, bytes) != 0) {
    return kErrorMemoryAllocation;
  }
  memset(*pointer, kPoison, bytes);
  map.Add({.device = device,
           .begin = static_cast<const std::byte*>(*pointer),
           .bytes = bytes,
           .used_bytes = bytes});
  return 0;
}

void FreeMemory(const Allocation& allocation) {
  MemoryMap& map = Map();
  const std::lock_guard<std::mutex> lock(map.mutex);
  map.Remove(allocation);
  free(const_cast<std::byte*>(allocation.begin));
}

void AddMappedMemory(int32_t device, const void* begin, size_t bytes, size_t used_bytes) {
  MemoryMap& map = Map();
  const std::lock_guard<std::mutex> lock(map.mutex);
  map.Add({.device = device,
           .begin = static_cast<const std::byte*>(begin),
           .bytes = bytes,
           .used_bytes = used_bytes,
           .is_mapped = true});
}

void RemoveMappedMemory(const void* begin) {
  MemoryMap& map = Map();
  const std::lock_guard<std::mutex> lock(map.mutex);
  const auto found = map.by_begin.find(static_cast<const std::byte*>(begin));
  if (found != map.by_begin.end()) {
    map.Remove(Allocation(found->second));
  }
}

std::optional<Allocation> FindAllocation(const void* address) {
  const auto* at = static_cast<const std::byte*>(address);
  MemoryMap& map = Map();
  const std::lock_guard<std::mutex> lock(map.mutex);
  auto after = map.by_begin.upper_bound(at);
  if (after == map.by_begin.begin()) {
    return std::nullopt;
  }
  const Allocation& before = std::prev(after)->second;
  return at < before.begin + before.bytes ? std::optional(before) : std::nullopt;
}

bool IsAllocated(const Allocation& allocation) {
  const std::optional<Allocation> found = FindAllocation(allocation.begin);
  return found.has_value() && found->number == allocation.number;
}

int64_t NumUsedBytes(int32_t device) {
  MemoryMap& map = Map();
  const std::lock_guard<std::mutex> lock(map.mutex);
  return map.Used(device);
}

void References::AddPointersInBytes(const void* bytes, size_t count) {
  for (size_t at = 0; at + sizeof(void*) <= count; at += sizeof(void*)) {
    const void* word = nullptr;
    memcpy(&word, static_cast<const std::byte*>(bytes) + at, sizeof(word));
    Add(word);
  }
}

void References::Add(const void* address) {
  if (const std::optional<Allocation> found = FindAllocation(address); found.has_value()) {
    allocations_.push_back(*found);
  }
}

bool References::AreAllocated() const {
  return std::all_of(allocations_.begin(), allocations_.end(), IsAllocated);
}

bool References::AreReachableFrom(int32_t device) const {
  return std::all_of(allocations_.begin(), allocations_.end(), [device](const Allocation& each) {
    return each.device == device || each.device == kPinned;
  });
}

namespace {

// Frees the allocation that begins at the pointer. Returns an error if the memory is not pinned but
// is_pinned is true, or the reverse. Does nothing for null.
int Release(void* pointer, bool is_pinned) {
  if (const int error = RefuseWhileRecording(); error != 0 || pointer == nullptr) {
    return error;
  }
  const std::optional<Allocation> found = FindAllocation(pointer);
  if (!found.has_value() || found->begin != pointer || found->is_mapped ||
      (found->device == kPinned) != is_pinned) {
    return kErrorInvalidValue;
  }
  if (!is_pinned) {
    RunAllStreams(found->device);
  }
  FreeMemory(*found);
  return 0;
}

}  // namespace
}  // namespace emulator

int Allocate(void** pointer, size_t bytes) {
  const int error = emulator::RefuseWhileRecording();
  return error != 0 ? error : emulator::AllocateMemory(emulator::CurrentDevice(), pointer, bytes);
}

// Waits for the device, as cudaFree does.
int Free(void* pointer) { return emulator::Release(pointer, /*is_pinned=*/false); }

int AllocatePinned(void** pointer, size_t bytes) {
  const int error = emulator::RefuseWhileRecording();
  return error != 0 ? error : emulator::AllocateMemory(emulator::kPinned, pointer, bytes);
}

// Does not wait for streams, so a copy that still needs the memory faults when it runs.
int FreePinned(void* pointer) { return emulator::Release(pointer, /*is_pinned=*/true); }

}  // namespace quire::gpu
