// Finds what an operation, or a part of one, changes in the memory that the operation refers to.
//
// Thread safety: functions without state. Nothing else may write to the memory during a call.
#ifndef QUIRE_KERNELS_CUDA_EMULATOR_MEMORY_CHANGES_H_
#define QUIRE_KERNELS_CUDA_EMULATOR_MEMORY_CHANGES_H_

#include <cstddef>
#include <vector>

#include "kernels/cuda/emulator/memory.h"

namespace quire::gpu::emulator {

// Bytes of global memory, and what they held.
struct Bytes {
  std::byte* begin = nullptr;
  std::vector<std::byte> held;
};

// Returns copies of the allocations, each once. Returns none if they have more than 16 MiB
// together, because copies of more take too long. Leaves out windows and their pools, because a
// place without a block cannot be read.
std::vector<Bytes> CopyOf(const References& references);

// Returns the bytes that differ from `before`, as they are now.
std::vector<Bytes> ChangedSince(const std::vector<Bytes>& before);

}  // namespace quire::gpu::emulator

#endif  // QUIRE_KERNELS_CUDA_EMULATOR_MEMORY_CHANGES_H_
