// How much memory this process may take: the machine's, or that of its control group (version 1 or
// 2) or of a group around it, whichever is less.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_WORKER_KV_CACHE_AVAILABLE_MEMORY_H_
#define QUIRE_WORKER_KV_CACHE_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <optional>
#include <string>

namespace quire {

// What may still be taken without swapping: pages of files that can be dropped count as free.
// Nothing when the kernel does not say. root: where /proc and /sys are; another one in tests.
std::optional<int64_t> AvailableMemoryBytes(const std::string& root = "");

// All there is, whoever has it now. Nothing when the kernel does not say.
std::optional<int64_t> TotalMemoryBytes(const std::string& root = "");

}  // namespace quire

#endif  // QUIRE_WORKER_KV_CACHE_AVAILABLE_MEMORY_H_
