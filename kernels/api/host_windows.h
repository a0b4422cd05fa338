// WindowMemory in main memory. The pool is an unnamed file, mapped once as a whole and again, block
// by block, into a range of addresses that is reserved without memory. A place that shows no block
// is protected: access raises SIGSEGV.
//
// Thread safety: as WindowMemory.
// Cost:          Map also fills the page table, so that kernels meet no page faults. Linux keeps
//                one mapping for each run of neighbours and limits their number (vm.max_map_count,
//                65,530 by default).
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

// Returns how many mappings Linux allows a process, or its default if the limit cannot be read.
int64_t MaxMappings();
// Upper bound on places that show a block, such that enough mappings remain for the rest of the
// process.
int64_t MaxMappedHostPlaces();

}  // namespace quire

#endif  // QUIRE_KERNELS_API_HOST_WINDOWS_H_
