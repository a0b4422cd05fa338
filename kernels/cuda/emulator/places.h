// Tracks which places have a block, and since when. A place is a range of addresses into which a
// block of the pool can be mapped (kernels/cuda/windows.h). With this, the emulator detects copies
// from a place that has no block, or whose block was mapped after the kernel was enqueued.
//
// Thread safety: any thread.
#ifndef QUIRE_KERNELS_CUDA_EMULATOR_PLACES_H_
#define QUIRE_KERNELS_CUDA_EMULATOR_PLACES_H_

#include <cstddef>
#include <cstdint>

namespace quire::gpu::emulator {

// Returns how often blocks have been mapped into places or unmapped so far. A call that maps or
// unmaps blocks of several adjacent places counts once.
uint64_t NumPlaceChanges();

enum class Sight : uint8_t {
  kElsewhere,  // the address is in no place
  kShown,      // a block is mapped into the address's place
  kNothing,    // no block is mapped into the address's place
  kChanged,    // the block was mapped into the place after the operation was enqueued
};
// Returns what an operation finds if it reads `bytes` bytes at the address. num_changes: the value
// of NumPlaceChanges() when the operation was enqueued.
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
