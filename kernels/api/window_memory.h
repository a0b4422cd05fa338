// WindowMemory is a KV pool whose blocks can be read at a second address, in windows. The windows
// are a range of addresses, divided into places. A place has the size of a block, and any block can
// be mapped into it. A kernel that reads consecutive places finds a sequence's keys and values
// contiguous, whichever blocks hold them. A block can be mapped into many places, as for a shared
// prefix.
//
// Blocks are written, copied and swapped through pool(). A place without a mapped block must not be
// accessed: on a CPU a read ends the process; on a device the result is undefined.
//
// Thread safety: one thread at a time calls Map and Unmap. Meanwhile, operations on other places
//                may run. Operations on the same places must be done before the call
//                (KernelBackend::WaitForOperations). The executor thread calls all other functions.
// Cost:          Map and Unmap are system calls of some microseconds, so map adjacent blocks in one
//                call.
// Source:        vAttention, Prabhu et al. 2024, section 5 (virtual tensors, pages on demand). Here
//                a block can also be mapped several times, which vAttention lacks.
#ifndef QUIRE_KERNELS_API_WINDOW_MEMORY_H_
#define QUIRE_KERNELS_API_WINDOW_MEMORY_H_

#include <cstdint>

#include "absl/status/status.h"

#include "common/base/ids.h"

namespace quire {

struct WindowShape {
  // A multiple of KernelBackend::window_page_bytes. If KV blocks are smaller than a page, several
  // KV blocks together are one block here.
  int64_t block_bytes = 0;
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

  // Returns how many places can have a mapped block at the same time under the system's limits, for
  // any choice of places and blocks.
  virtual int64_t max_mapped_places() const = 0;

  // Maps blocks [block, block + count) into places [place, place + count), and replaces earlier
  // mappings of these places. Errors: kResourceExhausted, reason MEMORY; some of the places may
  // then have no mapped block.
  virtual absl::Status Map(int64_t place, BlockId block, int64_t count) = 0;
  // Removes the mappings of places [place, place + count). Errors: as Map.
  virtual absl::Status Unmap(int64_t place, int64_t count) = 0;

  // Zeroes the pool. Operations started after the call see zeros. Mappings stay.
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
