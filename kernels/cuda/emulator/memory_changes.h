// Finds what an operation, or a part of one, changes in the memory that the operation refers to.
//
// Thread safety: any thread, if no other thread writes to the memory during the call.
#ifndef QUIRE_KERNELS_CUDA_EMULATOR_MEMORY_CHANGES_H_
#define QUIRE_KERNELS_CUDA_EMULATOR_MEMORY_CHANGES_H_

#include <cstddef>
#include <vector>

#include "kernels/cuda/emulator/memory.h"

namespace quire::gpu::emulator {

// A range of global memory, and what it held at some time.
struct Bytes {
  std::byte* begin = nullptr;
  std::vector<std::byte> held;
};

// Copies each allocation once. Returns no copies if the allocations have more than 16 MiB together,
// because such copies take too long. Leaves out windows and their pools, because a place without a
// block cannot be read.
std::vector<Bytes> CopyOf(const References& references);

// Returns the bytes that differ from `before`, with their current contents.
std::vector<Bytes> ChangedSince(const std::vector<Bytes>& before);

}  // namespace quire::gpu::emulator

#endif  // QUIRE_KERNELS_CUDA_EMULATOR_MEMORY_CHANGES_H_
