// Windows: a pool of blocks on the device, and places, each as large as a block, any of which can
// show any block at a second address (kernels/api/window_memory.h says what for).
//
// CUDA: each block is physical memory of its own, made at the start, which is mapped into the pool
// for good and into places on demand. No place is mapped before it shows something, so that a read
// of it is an illegal access. Emulated: a file in memory; a kernel that copies from a place which
// shows nothing, or shows something else than when it was enqueued, is a fault.
//
// Devices: those of runtime.h: the windows belong to the device that was current.
// Thread safety: MapPlaces and UnmapPlaces by one thread at a time, beside operations that touch
//                none of these places, on devices as in runtime.h.
// Cost:          kernels/cuda/README.md has what the calls take on a GPU.
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
  void* places = nullptr;  // [num_places, block_bytes], read by kernels alone
};

// The current device's; 0: it has no such memory.
int WindowPageBytes(size_t* bytes);

// What the pool holds is undefined, and no place shows anything. Errors: cudaErrorMemoryAllocation,
// also where there are no addresses for so many places.
int CreateWindows(const WindowsShape& shape, Windows* windows);
// Waits for all streams of the device, as Free. Null is nothing.
int DestroyWindows(void* handle);

// Places [place, place + count) show blocks [block, block + count), whatever they showed. After an
// error they show nothing. REQUIRES: no operation that reads what they showed is under way.
int MapPlaces(void* handle, int64_t place, BlockId block, int64_t count);
// They show nothing. REQUIRES: as MapPlaces.
int UnmapPlaces(void* handle, int64_t place, int64_t count);

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_WINDOWS_H_
