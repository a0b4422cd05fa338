// Windows consist of a pool of blocks on the device, and of places. A place is a range of
// addresses, as large as one block, into which any block of the pool can be mapped. The block can
// then be read at a second address (kernels/api/window_memory.h says why).
//
// CUDA build: each block is a separate physical allocation, made in CreateWindows. The block is
// mapped into the pool permanently, and into places on demand. Reading a place that has no block is
// an illegal access. Emulated build: pool and places map a memory file. A kernel faults if it
// copies from a place that has no block. It also faults if the place's block was mapped after the
// kernel was enqueued.
//
// Devices:       as in runtime.h. Windows belong to the device that was current at their creation.
// Thread safety: one caller at a time for MapPlaces and UnmapPlaces. Meanwhile operations on other
//                places may run, on the devices that runtime.h allows.
// Cost:          kernels/cuda/README.md has the calls' times on a GPU.
// Errors:        0 or a cudaError_t, as in runtime.h.
// Source:        CUDA C++ Programming Guide, "Virtual Memory Management".
#ifndef QUIRE_KERNELS_CUDA_WINDOWS_H_
#define QUIRE_KERNELS_CUDA_WINDOWS_H_

#include <cstddef>
#include <cstdint>

#include "common/base/ids.h"

namespace quire::gpu {

struct WindowsShape {
  size_t block_bytes = 0;  // a multiple of WindowPageBytes
  int64_t num_blocks = 0;
  int64_t num_places = 0;
};

struct Windows {
  void* handle = nullptr;
  void* pool = nullptr;    // [num_blocks, block_bytes], read and written
  void* places = nullptr;  // [num_places, block_bytes], only read, and only by kernels
};

// Sets *bytes to the current device's page size, or to 0 if the device cannot map windows.
int WindowPageBytes(size_t* bytes);

// Creates a pool with undefined contents, and places that have no blocks yet. Errors:
// cudaErrorMemoryAllocation if there is too little memory or address space.
int CreateWindows(const WindowsShape& shape, Windows* windows);
// Waits for all streams of the device, as Free does, then destroys pool and places. Does nothing
// for null.
int DestroyWindows(void* handle);

// Maps blocks [block, block + count) into places [place, place + count), and unmaps the blocks that
// these places had. After an error the places have no blocks. REQUIRES: every operation that reads
// these places is done.
int MapPlaces(void* handle, int64_t place, BlockId block, int64_t count);
// Unmaps the blocks of places [place, place + count). REQUIRES: as MapPlaces.
int UnmapPlaces(void* handle, int64_t place, int64_t count);

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_WINDOWS_H_
