// The memory of the emulated devices and the pinned memory of the host: which addresses are whose.
//
// Every allocation has a number of its own: what was freed and allocated again is another one, even
// at the same address. Addresses that are in no allocation are taken for the host's own memory.
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
inline constexpr int32_t kPinned = -1;  // in place of a device: pinned memory of the host

// Of each device, and of the pinned memory: enough for small models, and small enough to fill.
inline constexpr int64_t kDeviceBytes = int64_t{1} << 30;

struct Allocation {
  uint64_t number = 0;
  int32_t device = kPinned;
  const std::byte* begin = nullptr;
  size_t bytes = 0;
  size_t used_bytes = 0;   // of the device's memory
  bool is_mapped = false;  // made and released by who added it
};

// 0, or cudaErrorMemoryAllocation. The memory holds 0xFF.
int AllocateMemory(int32_t device, void** pointer, size_t bytes);
void FreeMemory(const Allocation& allocation);

// The same for addresses that were mapped elsewhere, and take so much of the device's memory.
void AddMappedMemory(int32_t device, const void* begin, size_t bytes, size_t used_bytes);
void RemoveMappedMemory(const void* begin);

// The allocation that the address lies in.
std::optional<Allocation> FindAllocation(const void* address);
bool IsAllocated(const Allocation& allocation);
int64_t NumUsedBytes(int32_t device);

// The allocations that an operation works on.
class References {
 public:
  // Those that a pointer in the object, at a multiple of 8, points into.
  template <typename T>
  void AddPointersIn(const T& object) {
    T copy = object;
    // Between its members may be what is left of a pointer that was there before.
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(&copy);
#endif
    // NOLINTNEXTLINE(bugprone-sizeof-expression): of the object itself, also where it is a pointer
    AddPointersInBytes(&copy, sizeof(copy));
  }
  void Add(const void* address);

  // Whether all are still what they were when they were added.
  bool AreAllocated() const;
  // Whether all are of this device or pinned.
  bool AreReachableFrom(int32_t device) const;

 private:
  void AddPointersInBytes(const void* bytes, size_t count);

  std::vector<Allocation> allocations_;
};

}  // namespace quire::gpu::emulator

#endif  // QUIRE_KERNELS_CUDA_EMULATOR_MEMORY_H_
