// Tracks what the places of emulated windows show, and since when. So it detects a kernel that
// copies from a place that shows nothing, or that changed while the kernel waited on its stream.
//
// Thread safety: any thread.
#ifndef QUIRE_KERNELS_CUDA_EMULATOR_PLACES_H_
#define QUIRE_KERNELS_CUDA_EMULATOR_PLACES_H_

#include <cstddef>
#include <cstdint>

namespace quire::gpu::emulator {

// Returns the number of changes of any place so far.
uint64_t NumPlaceChanges();

enum class Sight : uint8_t {
  kElsewhere,  // not in windows
  kShown,
  kNothing,
  kChanged,  // changed after the first num_changes changes
};
// Returns what an operation that was enqueued after num_changes changes sees at the address.
Sight LookAt(const void* address, size_t bytes, uint64_t num_changes);

// Returns the number of changes at the enqueueing of the operation that the calling thread runs.
uint64_t ChangesAtEnqueue();
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
