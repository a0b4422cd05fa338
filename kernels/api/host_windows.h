// MakeHostWindows makes a WindowMemory in main memory. The pool is an unnamed file that is mapped
// as a whole. The windows are a range of reserved addresses, into which blocks of the file are
// mapped a second time. A place (room for one block) without a mapped block is protected: access
// raises SIGSEGV.
//
// Thread safety: as WindowMemory.
// Cost:          Map also fills the page table, so that kernels meet no page faults. Linux keeps
//                one mapping for each run of adjacent blocks and limits the number of mappings
//                (vm.max_map_count, 65,530 by default).
#ifndef QUIRE_KERNELS_API_HOST_WINDOWS_H_
#define QUIRE_KERNELS_API_HOST_WINDOWS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

#include "kernels/api/window_memory.h"

namespace quire {

// Errors: kResourceExhausted, reason MEMORY. REQUIRES: the block size is a multiple of
// HostPageBytes; no field of the shape is 0.
absl::StatusOr<std::unique_ptr<WindowMemory>> MakeHostWindows(const WindowShape& shape);

int64_t HostPageBytes();

// Returns how many mappings Linux allows a process. If the limit cannot be read, returns Linux's
// default.
int64_t MaxMappings();
// Returns how many places (block-sized parts of windows, window_memory.h) can have a mapped block
// at the same time. More would leave too few mappings for the rest of the process.
int64_t MaxMappedHostPlaces();

}  // namespace quire

#endif  // QUIRE_KERNELS_API_HOST_WINDOWS_H_
