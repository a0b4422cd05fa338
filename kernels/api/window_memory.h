// WindowMemory is a KV pool whose blocks can be seen at a second address: a range of places, each
// as large as a block, any of which can show any block. A kernel that reads places one after
// another sees a sequence's keys and values in one piece, whatever blocks they are in. One block
// may be shown at many places: that is how a shared prefix looks.
//
// pool() is where blocks are written, copied and swapped. A place that shows nothing must not be
// touched: a read of it ends the process, or is undefined on a device.
//
// Thread safety: Map and Unmap by one thread at a time, also beside operations that touch none of
//                the places; those that do are done (KernelBackend::WaitForOperations). Everything
//                else: the executor thread.
// Cost:          Map and Unmap are calls into the system: some microseconds each, so neighbours are
//                mapped in one.
// Source:        vAttention, Prabhu et al. 2024, section 5 (virtual tensors, pages on demand), with
//                aliases, which it has not.
#ifndef QUIRE_KERNELS_API_WINDOW_MEMORY_H_
#define QUIRE_KERNELS_API_WINDOW_MEMORY_H_

#include <cstdint>

#include "absl/status/status.h"

#include "common/base/ids.h"

namespace quire {

struct WindowShape {
  int64_t block_bytes = 0;  // a multiple of KernelBackend::window_page_bytes
  int64_t num_blocks = 0;
  int64_t num_places = 0;
};

class WindowMemory {
 public:
  virtual ~WindowMemory() = default;
  WindowMemory(const WindowMemory&) = delete;
  WindowMemory& operator=(const WindowMemory&) = delete;

  const WindowShape& shape() const { return shape_; }
  void* pool() const { return pool_; }
  void* windows() const { return windows_; }

  // How many places may show something, so that the system's limits hold whatever they show.
  virtual int64_t max_mapped_places() const = 0;

  // Places [place, place + count) show blocks [block, block + count), whatever they showed. Errors:
  // kResourceExhausted, reason MEMORY; some of the places may show nothing then.
  virtual absl::Status Map(int64_t place, BlockId block, int64_t count) = 0;
  // They show nothing. Errors: as Map.
  virtual absl::Status Unmap(int64_t place, int64_t count) = 0;

  // Every byte of the pool reads as zero again, for operations that are started after the call.
  // What places show stays.
  virtual absl::Status Clear() = 0;

 protected:
  WindowMemory(const WindowShape& shape, void* pool, void* windows)
      : shape_(shape), pool_(pool), windows_(windows) {}

 private:
  const WindowShape shape_;
  void* const pool_;
  void* const windows_;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_API_WINDOW_MEMORY_H_
