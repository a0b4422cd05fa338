// Operation is an entry of a stream or a graph: a kernel with its arguments, a product, a copy.
//
// Thread safety: one caller at a time.
#ifndef QUIRE_KERNELS_CUDA_EMULATOR_OPERATION_H_
#define QUIRE_KERNELS_CUDA_EMULATOR_OPERATION_H_

#include <functional>

#include "kernels/cuda/emulator/memory.h"

namespace quire::gpu::emulator {

struct Operation {
  const char* name = "";  // shown in fault reports
  References references;
  std::function<int()> run;  // returns 0 or an error
  // True for a kernel that may overlap with the previous operation on its stream (early_start.h).
  bool starts_early = false;
  // Returns whether the ranks that the operation needs have arrived. Called only while the
  // operation is the first on its stream. Empty if the operation needs no other rank.
  std::function<bool()> is_ready = nullptr;
};

// Puts the operation on the stream, or into the graph that is being recorded from the stream. An
// operation on the default stream runs before the call returns, and the call returns its error.
// Other errors: cudaErrorInvalidResourceHandle for a stream that does not belong to the current
// device, cudaErrorIllegalAddress for memory of another device, and the errors of recording.
int Enqueue(void* stream, Operation operation);

// Runs the operation now. Reports a fault if memory that the operation uses was freed after the
// operation was made.
int RunOperation(const Operation& operation);

// Returns the references of the operation that the calling thread runs, or null if it runs none.
const References* ReferencesNow();

}  // namespace quire::gpu::emulator

#endif  // QUIRE_KERNELS_CUDA_EMULATOR_OPERATION_H_
