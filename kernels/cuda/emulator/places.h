// Tracks which places of emulated windows (kernels/cuda/windows.h) show a block, and since when. So
// the emulator detects a kernel that copies from a place that shows no block, or from a place that
// changed while the kernel waited on its stream.
//
// Thread safety: any thread.
#ifndef QUIRE_KERNELS_CUDA_EMULATOR_PLACES_H_
#define QUIRE_KERNELS_CUDA_EMULATOR_PLACES_H_

#include <cstddef>
#include <cstdint>

namespace quire::gpu::emulator {

// Returns the number of changes of all places so far.
uint64_t NumPlaceChanges();

enum class Sight : uint8_t {
  kElsewhere,  // no window's place contains the address
  kShown,      // memory is mapped at the place
  kNothing,    // no memory is mapped at the place
  kChanged,    // the place changed after the operation was enqueued
};
// Returns what an operation sees at the address. num_changes: NumPlaceChanges() when the operation
// was enqueued.
Sight LookAt(const void* address, size_t bytes, uint64_t num_changes);

// Returns the value that NumPlaceChanges() had when the calling thread's current operation was
// enqueued.
uint64_t ChangesAtEnqueue();
// While the object exists, ChangesAtEnqueue() returns changes_at_enqueue.
class RunningOperation {
 public:
  explicit RunningOperation(uint64_t changes_at_enqueue);
  ~RunningOperation();
  RunningOperation(const RunningOperation&) = delete;
  RunningOperation& operator=(const RunningOperation&) = delete;

 private:
  const uint64_t before_;
};

}  // namespace quire::gpu::emulator

#endif  // QUIRE_KERNELS_CUDA_EMULATOR_PLACES_H_
