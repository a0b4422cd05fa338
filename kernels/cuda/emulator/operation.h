// Operation is what is put on a stream or into a graph: a kernel with its arguments, a product, a
// copy.
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
  // Of an operation that needs other ranks, once it is the first of its stream: whether they have
  // come. None: it needs nobody.
  std::function<bool()> is_ready = nullptr;
};

// Puts the operation on the stream, or into the graph that is being recorded there. On the default
// stream it has run when the call returns, with the error that it had. Errors:
// cudaErrorInvalidResourceHandle for a stream of another device than the current one;
// cudaErrorIllegalAddress for memory of another device; those of recording.
int Enqueue(void* stream, Operation operation);

// Runs it now. Memory that was freed since the operation was made is a fault.
int RunOperation(const Operation& operation);

}  // namespace quire::gpu::emulator

#endif  // QUIRE_KERNELS_CUDA_EMULATOR_OPERATION_H_
