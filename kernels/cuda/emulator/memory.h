// The memory of the emulated devices and the host's pinned memory: maps addresses to allocations.
//
// Every allocation has a unique number, which distinguishes it from a later allocation at the same
// address. Addresses outside of all allocations count as unpinned host memory.
//
// Thread safety: any thread.
#ifndef QUIRE_KERNELS_CUDA_EMULATOR_MEMORY_H_
#define QUIRE_KERNELS_CUDA_EMULATOR_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace quire::gpu::emulator {

inline constexpr int32_t kNumDevices = 2;
// Stands for the host's pinned memory where a function takes a device.
inline constexpr int32_t kPinned = -1;

// Size of each device's memory, and limit of pinned memory: large enough for small models, and
// small enough for tests to fill.
inline constexpr int64_t kDeviceBytes = int64_t{1} << 30;

struct Allocation {
  uint64_t number = 0;
  int32_t device = kPinned;
  const std::byte* begin = nullptr;
  size_t bytes = 0;
  size_t used_bytes = 0;   // what NumUsedBytes counts for this allocation
  bool is_mapped = false;  // true if added by AddMappedMemory, whose caller owns the memory
};

// Returns 0 or cudaErrorMemoryAllocation. Fills the memory with 0xFF.
int AllocateMemory(int32_t device, void** pointer, size_t bytes);
void FreeMemory(const Allocation& allocation);

// Adds an allocation of addresses that the caller has mapped. used_bytes: the bytes that
// NumUsedBytes counts for the allocation.
void AddMappedMemory(int32_t device, const void* begin, size_t bytes, size_t used_bytes);
void RemoveMappedMemory(const void* begin);

// Returns the allocation that contains the address, or nullopt if there is none.
std::optional<Allocation> FindAllocation(const void* address);
bool IsAllocated(const Allocation& allocation);
int64_t NumUsedBytes(int32_t device);

// The allocations that an operation reads or writes.
class References {
 public:
  // Adds each allocation that a word of the object points into. A word is 8 bytes, at an
  // offset in the object that is a multiple of 8.
  template <typename T>
  void AddPointersIn(const T& object) {
    T copy = object;
    // Padding may hold the remains of an old pointer.
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(&copy);
#endif
    // NOLINTNEXTLINE(bugprone-sizeof-expression): the object's own size, even if it is a pointer
    AddPointersInBytes(&copy, sizeof(copy));
  }
  void Add(const void* address);

  const std::vector<Allocation>& allocations() const { return allocations_; }
  // Returns whether all added allocations are still allocated.
  bool AreAllocated() const;
  // Returns whether every allocation is on the device or pinned.
  bool AreReachableFrom(int32_t device) const;

 private:
  void AddPointersInBytes(const void* bytes, size_t count);

  std::vector<Allocation> allocations_;
};

}  // namespace quire::gpu::emulator

#endif  // QUIRE_KERNELS_CUDA_EMULATOR_MEMORY_H_
