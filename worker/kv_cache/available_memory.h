// Memory that this process may take: the least of the machine's memory, the limit of the process's
// control group (version 1 or 2), and the limits of that group's ancestors.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_WORKER_KV_CACHE_AVAILABLE_MEMORY_H_
#define QUIRE_WORKER_KV_CACHE_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <optional>
#include <string>

namespace quire {

// Returns the bytes that can still be taken without swapping; file pages that can be dropped count
// as free. Returns nullopt if the kernel does not report them. root: a directory to read in place
// of /, for tests.
std::optional<int64_t> AvailableMemoryBytes(const std::string& root = "");

// Returns the sum of used and free bytes. Returns nullopt if the kernel does not report them.
std::optional<int64_t> TotalMemoryBytes(const std::string& root = "");

}  // namespace quire

#endif  // QUIRE_WORKER_KV_CACHE_AVAILABLE_MEMORY_H_
