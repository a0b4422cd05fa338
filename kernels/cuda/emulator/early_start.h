// Programmatic dependent launch: a kernel that starts early may run beside the previous operation
// on its stream, up to its wait for that operation.
//
// The emulator runs the two operations one after the other, and notes which bytes the earlier one
// changed. Each CTA of the later kernel first runs until all its threads wait, with these bytes set
// to NaN. So a kernel that reads results before its wait computes with NaN, also if an asynchronous
// or bulk copy reads them. A write to global memory before the wait, and a CTA without a wait, are
// faults.
//
// Thread safety: one caller at a time.
// Source:        CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".
#ifndef QUIRE_KERNELS_CUDA_EMULATOR_EARLY_START_H_
#define QUIRE_KERNELS_CUDA_EMULATOR_EARLY_START_H_

#include <vector>

#include "kernels/cuda/emulator/memory_changes.h"
#include "kernels/cuda/emulator/operation.h"

namespace quire::gpu::emulator {

// Runs the operation, and returns its error. next: the operation after it on the stream, or null.
// If `next` starts early, notes what the operation changes.
int RunOperationBefore(const Operation& operation, const Operation* next);

// The early part of one CTA of a kernel that starts early.
class EarlyPart {
 public:
  // Poisons the bytes that the operation before the running one has changed.
  void Begin();
  // Restores the bytes that Begin poisoned. Returns false if the CTA has written to global memory
  // since Begin.
  bool End();
  bool is_running() const { return is_running_; }

 private:
  bool is_running_ = false;
  std::vector<Bytes> results_;  // bytes that the earlier operation changed
  // The memory that the running operation refers to, copied after results_ was poisoned.
  std::vector<Bytes> reachable_;
};

// Returns whether the running operation starts early and the changes of the operation before it are
// noted.
bool StartsEarly();

}  // namespace quire::gpu::emulator

#endif  // QUIRE_KERNELS_CUDA_EMULATOR_EARLY_START_H_
