// How much memory this process may take: the machine's, or its control group's, whichever is less.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_WORKER_KV_CACHE_AVAILABLE_MEMORY_H_
#define QUIRE_WORKER_KV_CACHE_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quire {

// What may still be taken without swapping. Nothing when the kernel does not say.
std::optional<int64_t> AvailableMemoryBytes();

// All there is, whoever has it now. Nothing when the kernel does not say.
std::optional<int64_t> TotalMemoryBytes();

// A field ("MemAvailable", "MemTotal") of the text of /proc/meminfo, in bytes.
std::optional<int64_t> ParseMeminfo(std::string_view meminfo, std::string_view field);

// memory.max less memory.current of a control group (version 2), given the texts of the two files.
// Nothing when there is no limit ("max").
std::optional<int64_t> ParseCgroupHeadroom(std::string_view max, std::string_view current);

}  // namespace quire

#endif  // QUIRE_WORKER_KV_CACHE_AVAILABLE_MEMORY_H_
