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

// Returns the bytes that this process can still allocate without swapping. File pages that can be
// dropped count as free. Returns nullopt if the kernel does not report the amount. root: a
// directory that is read instead of /, for tests.
std::optional<int64_t> AvailableMemoryBytes(const std::string& root = "");

// Returns the machine's memory, or the tightest control group limit if that is less. Bytes in use
// are included. Returns nullopt if the kernel does not report the size.
std::optional<int64_t> TotalMemoryBytes(const std::string& root = "");

}  // namespace quire

#endif  // QUIRE_WORKER_KV_CACHE_AVAILABLE_MEMORY_H_
