// WindowMemory in main memory: the pool is a file without a name, mapped once as a whole and once
// more, block by block, into a range of addresses that is reserved without memory. A place that
// shows nothing is protected: whoever touches it gets SIGSEGV.
//
// Thread safety: as WindowMemory.
// Cost:          Map fills in the page table as well, so that kernels meet no page faults. Linux
//                keeps one mapping for each run of neighbours and limits them
//                (vm.max_map_count, 65,530 by default).
#ifndef QUIRE_KERNELS_API_HOST_WINDOWS_H_
#define QUIRE_KERNELS_API_HOST_WINDOWS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

#include "kernels/api/window_memory.h"

namespace quire {

// Errors: kResourceExhausted, reason MEMORY. REQUIRES: the block size is a multiple of
// HostPageBytes; none of the shape is 0.
absl::StatusOr<std::unique_ptr<WindowMemory>> MakeHostWindows(const WindowShape& shape);

int64_t HostPageBytes();

// Mappings that Linux allows this process; its default where it does not say.
int64_t MaxMappings();
// Of these, so many places may be shown that the rest of the process has enough.
int64_t MaxMappedHostPlaces();

}  // namespace quire

#endif  // QUIRE_KERNELS_API_HOST_WINDOWS_H_
