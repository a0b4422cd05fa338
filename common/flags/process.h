// What the main of every server needs before it has threads: signals that only it gets, and an end
// with one line when it cannot start.
//
// Thread safety: call from main, PrepareSignals and OpenStandardStreams before other threads start.
#ifndef QUIRE_COMMON_FLAGS_PROCESS_H_
#define QUIRE_COMMON_FLAGS_PROCESS_H_

#include <csignal>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

namespace quire {

// Opens /dev/null for each of the descriptors 0 to 2 that is closed. Else a socket or a file of
// ours could get the number, and the log would be written into it.
void OpenStandardStreams();

// Blocks SIGTERM and SIGINT here and in all threads that start later: they are got by sigwait. A
// limit on the size of files (SIGXFSZ) does not end the process: the write fails.
sigset_t PrepareSignals();

// Ends the process with one line on standard error: the prefix, unless the message begins with it,
// and the message. Exit code kExitMemory for the reason MEMORY, else the one given.
[[noreturn]] void ExitWith(const absl::Status& status, std::string_view prefix, int exit_code);

// The value, or the end of the process.
template <typename T>
T ValueOrExit(absl::StatusOr<T> value, std::string_view prefix, int exit_code) {
  if (!value.ok()) {
    ExitWith(value.status(), prefix, exit_code);
  }
  return *std::move(value);
}

}  // namespace quire

#endif  // QUIRE_COMMON_FLAGS_PROCESS_H_
