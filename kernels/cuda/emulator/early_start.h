// Programmatic dependent launch: a kernel that starts early may overlap with the previous operation
// on its stream, until the kernel waits for that operation.
//
// The emulator runs the two operations one after the other, and notes which bytes the first one
// changed. It first runs each CTA of the kernel until all threads of the CTA wait. During this
// early part of the CTA, these bytes are NaN. So a kernel that reads results before its wait
// computes with NaN, also if an asynchronous or bulk copy reads them. A write to global memory
// before the wait, and a CTA without a wait, are faults.
//
// Thread safety: one caller at a time.
// Source:        CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".
#ifndef QUIRE_KERNELS_CUDA_EMULATOR_EARLY_START_H_
#define QUIRE_KERNELS_CUDA_EMULATOR_EARLY_START_H_

#include <vector>

#include "kernels/cuda/emulator/memory_changes.h"
#include "kernels/cuda/emulator/operation.h"

namespace quire::gpu::emulator {

// Runs `operation`, and returns its error. If `next` starts early, notes which bytes `operation`
// changes. next: the next operation on the stream, or null.
int RunOperationBefore(const Operation& operation, const Operation* next);

// One CTA's early part: what it does before all its threads wait for the previous operation.
class EarlyPart {
 public:
  // Poisons the bytes that the previous operation changed.
  void Begin();
  // Restores the bytes that Begin poisoned. Returns false if the CTA has written to global memory
  // since Begin, which is checked only for the first CTAs of a kernel.
  bool End();
  bool is_running() const { return is_running_; }

 private:
  bool is_running_ = false;
  std::vector<Bytes> results_;  // bytes that the previous operation changed
  // The memory that the running operation refers to, copied after results_ was poisoned.
  std::vector<Bytes> reachable_;
};

// Returns true if the running operation starts early and the emulator has noted what the previous
// operation changed.
bool StartsEarly();

}  // namespace quire::gpu::emulator

#endif  // QUIRE_KERNELS_CUDA_EMULATOR_EARLY_START_H_
