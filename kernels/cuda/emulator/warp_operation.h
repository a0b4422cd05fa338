// WarpOperation is a collective of the lanes of a mask: a shuffle, a vote or a matrix instruction.
// The last lane to arrive does the work for all.
//
// Thread safety: as the emulator; called by kernels, during a launch.
#ifndef QUIRE_KERNELS_CUDA_EMULATOR_WARP_OPERATION_H_
#define QUIRE_KERNELS_CUDA_EMULATOR_WARP_OPERATION_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/emulator/emulator.h"

namespace quire::gpu::emulator {

inline constexpr uint32_t kWarpSize = 32;

struct WarpOperation {
  const char* name;
  // Null: only waits. lanes[i] is the argument of lane i of the mask.
  void (*run)(void* const* lanes, uint32_t mask);
  bool from_one_line;  // .aligned in PTX
  bool orders_memory;  // lanes see each other's earlier writes afterwards
};

// Returns when all lanes of the mask have called with the same operation and mask.
void RunWarpOperation(const WarpOperation& operation, uint32_t mask, void* argument, SourceLine at);

bool InSharedMemory(const void* pointer, size_t bytes, SourceLine at);

// ---- For products, which read shared memory beside the threads ----

// Returns null if the address is not in shared memory.
const uint8_t* AtSharedAddress(uint32_t address, size_t bytes);
// Returns whether a copy landed here without a FenceAsyncProxy since, of its thread or of the whole
// running warp.
bool IsUnfenced(const uint8_t* shared);
// Lets TSan see a read.
void RecordRead(const void* pointer, size_t bytes);
uint32_t RunningWarp(SourceLine at);
// Lets another warp, by the CTA's order, run before the caller goes on.
void YieldToOtherWarps();

}  // namespace quire::gpu::emulator

#endif  // QUIRE_KERNELS_CUDA_EMULATOR_WARP_OPERATION_H_
