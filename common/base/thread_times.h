// ThreadTimes holds how long a thread ran on a CPU, and how long it was runnable but waited for a
// CPU. Both times only grow, from an arbitrary start.
//
// Thread safety: ThreadCpuNanos: any thread. A ThreadTimesReader reads the times of the thread that
//                constructed the reader; only this thread may use the reader.
// Cost:          ThreadCpuNanos takes 1 us (one system call), Read 2 us (two system calls).
#ifndef QUIRE_COMMON_BASE_THREAD_TIMES_H_
#define QUIRE_COMMON_BASE_THREAD_TIMES_H_

#include <cstdint>
#include <optional>

#include "common/base/file_descriptor.h"

namespace quire {

struct ThreadTimes {
  int64_t cpu_ns = 0;
  std::optional<int64_t> cpu_wait_ns;  // nullopt if the kernel does not report it
};

class ThreadTimesReader {
 public:
  ThreadTimesReader();

  ThreadTimes Read() const;

 private:
  FileDescriptor schedstat_;
};

// Returns ThreadTimes::cpu_ns of the calling thread.
int64_t ThreadCpuNanos();

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_THREAD_TIMES_H_
