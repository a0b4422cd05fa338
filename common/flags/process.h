// Helpers for the main of every server: standard streams, signals, one-line errors.
//
// Thread safety: call from main. Call PrepareSignals and OpenStandardStreams before other threads
//                start.
#ifndef QUIRE_COMMON_FLAGS_PROCESS_H_
#define QUIRE_COMMON_FLAGS_PROCESS_H_

#include <csignal>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

namespace quire {

// Opens /dev/null for each closed descriptor among 0 to 2. Otherwise a socket or file that the
// process opens later could get the number 2, and the log would be written into it. Also installs
// crash handlers: a crash then writes the log's last lines, and a thread that cannot be started
// ends the process with kExitUsage.
void OpenStandardStreams();

// Blocks SIGTERM and SIGINT in this thread and in threads that start later, so that sigwait
// receives both signals. Returns the set of these two. Ignores SIGXFSZ and SIGPIPE, so that a write
// fails instead of ending the process.
sigset_t PrepareSignals();

// Prints the status's message as one line on standard error and ends the process. Puts the prefix
// before a message that does not begin with it. The exit code is kExitMemory for the reason MEMORY,
// else exit_code.
[[noreturn]] void ExitWith(const absl::Status& status, std::string_view prefix, int exit_code);

// Returns the value, or ends the process by ExitWith.
template <typename T>
T ValueOrExit(absl::StatusOr<T> value, std::string_view prefix, int exit_code) {
  if (!value.ok()) {
    ExitWith(value.status(), prefix, exit_code);
  }
  return *std::move(value);
}

}  // namespace quire

#endif  // QUIRE_COMMON_FLAGS_PROCESS_H_
