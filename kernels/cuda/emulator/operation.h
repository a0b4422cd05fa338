// Operation is an entry of a stream or a graph: a kernel with its arguments, a product, a copy.
//
// Thread safety: one caller at a time.
#ifndef QUIRE_KERNELS_CUDA_EMULATOR_OPERATION_H_
#define QUIRE_KERNELS_CUDA_EMULATOR_OPERATION_H_

#include <functional>

#include "kernels/cuda/emulator/memory.h"

namespace quire::gpu::emulator {

struct Operation {
  const char* name = "";  // in faults
  References references;
  std::function<int()> run;  // 0 or an error
  // Returns whether the ranks that the operation needs have come; called when it is the first of
  // its stream. Empty: it needs no rank.
  std::function<bool()> is_ready = nullptr;
};

// Puts the operation on the stream, or into the graph that is being recorded there. On the default
// stream it runs before the call returns, with its error. Errors: cudaErrorInvalidResourceHandle
// for a stream of another than the current device; cudaErrorIllegalAddress for memory of another
// device; those of recording.
int Enqueue(void* stream, Operation operation);

// Runs the operation now. Memory freed since the operation was made is a fault.
int RunOperation(const Operation& operation);

}  // namespace quire::gpu::emulator

#endif  // QUIRE_KERNELS_CUDA_EMULATOR_OPERATION_H_
