// Returns freed memory to the system. By default glibc keeps most of it. After the first large free
// it takes later large buffers from arenas, of which there are eight per core, and an arena gives
// back only the free space at its end. So a server would keep the memory of a flood of requests.
//
// Thread safety: ConfigureMalloc before other threads start; ReturnFreeMemory from any thread.
// Cost:          two system calls for each buffer of 128 KiB and more, and a page fault for each
//                4 KiB of the buffer; ReturnFreeMemory: see its declaration.
// Source:        mallopt(3), malloc_trim(3).
#ifndef QUIRE_COMMON_BASE_FREE_MEMORY_H_
#define QUIRE_COMMON_BASE_FREE_MEMORY_H_

namespace quire {

// Makes malloc map each large buffer separately, so that freeing it returns its memory, and makes
// all threads share two arenas.
void ConfigureMalloc();

// Gives back all free whole pages of all arenas. Allocations of other threads wait meanwhile: about
// 0.1 ms per MiB given back, 0.02 ms if there is none.
void ReturnFreeMemory();

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_FREE_MEMORY_H_
