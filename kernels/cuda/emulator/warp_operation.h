// WarpOperation is a collective of the lanes of a mask: a shuffle, a vote or a matrix instruction.
// The last lane that arrives does the work for all lanes.
//
// Thread safety: as the emulator. Only kernels may call, during a launch.
#ifndef QUIRE_KERNELS_CUDA_EMULATOR_WARP_OPERATION_H_
#define QUIRE_KERNELS_CUDA_EMULATOR_WARP_OPERATION_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/emulator/emulator.h"

namespace quire::gpu::emulator {

inline constexpr uint32_t kWarpSize = 32;

struct WarpOperation {
  const char* name;
  // The work, or null if lanes only wait for each other. lanes[i] is lane i's argument.
  void (*run)(void* const* lanes, uint32_t mask);
  bool from_one_line;  // whether all lanes must call from one line (.aligned in PTX)
  bool orders_memory;  // whether lanes see each other's earlier writes afterwards
};

// Waits until all lanes of the mask have called with the same operation and mask. The last lane to
// call runs the operation.
void RunWarpOperation(const WarpOperation& operation, uint32_t mask, void* argument, SourceLine at);

bool InSharedMemory(const void* pointer, size_t bytes, SourceLine at);

// ---- For wgmma, which reads shared memory asynchronously ----

// Converts an address of a matrix descriptor to a pointer. Returns null if the bytes are not in
// shared memory.
const uint8_t* AtSharedAddress(uint32_t address, size_t bytes);
// Returns true if a copy landed at this address and is not fenced. A copy is fenced if, after it
// landed, the thread that copied or every thread of the running warp has called FenceAsyncProxy.
bool IsUnfenced(const uint8_t* shared);
// Reports a read to TSan.
void RecordRead(const void* pointer, size_t bytes);
uint32_t RunningWarp(SourceLine at);
// If other warps can run, one of them (by WarpOrder) runs before the calling thread continues.
void YieldToOtherWarps();

}  // namespace quire::gpu::emulator

#endif  // QUIRE_KERNELS_CUDA_EMULATOR_WARP_OPERATION_H_
