// What the places of emulated windows show, and since when: so that a kernel which copies from a
// place that shows nothing, or has come to show something else while the kernel waited on its
// stream, is found.
//
// Thread safety: any thread.
#ifndef QUIRE_KERNELS_CUDA_EMULATOR_PLACES_H_
#define QUIRE_KERNELS_CUDA_EMULATOR_PLACES_H_

#include <cstddef>
#include <cstdint>

namespace quire::gpu::emulator {

// How often any place has come to show something else.
uint64_t NumPlaceChanges();

enum class Sight : uint8_t {
  kElsewhere,  // not in windows
  kShown,
  kNothing,
  kChanged,  // something else than when so many changes had been made
};
// What an operation sees there that was enqueued after so many changes.
Sight LookAt(const void* address, size_t bytes, uint64_t num_changes);

// Of the operation that the calling thread runs: the changes when it was enqueued.
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
