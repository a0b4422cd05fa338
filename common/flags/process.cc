#include "common/flags/process.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "common/base/error.h"
#include "common/base/exit_codes.h"
#include "common/base/lossy_writer.h"
#include "common/base/printable.h"
#include "common/base/string_view.h"

namespace quire {

void OpenStandardStreams() {
  int fd = -1;
  do {
    fd = ::open("/dev/null", O_RDWR);  // open returns the lowest number that is free
  } while (fd >= 0 && fd <= STDERR_FILENO);
  ::close(fd);
  // The first call of StandardError installs the crash handlers. Without them a thread that cannot
  // be started would end the process by SIGABRT, and `quire serve` would restart the process for
  // ever.
  StandardError();
}

sigset_t PrepareSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);  // raised if the reader of a pipe or socket has gone
  return signals;
}

void ExitWith(const absl::Status& status, std::string_view prefix, int exit_code) {
  std::string line = OneLine(ToStd(status.message()));
  if (!line.starts_with(prefix)) {
    line.insert(0, prefix);
  }
  StandardError().Write(line + "\n");
  // Runs no destructors: they would destroy objects that other threads may still use.
  ExitNow(ReasonOf(status) == "MEMORY" ? kExitMemory : exit_code);
}

}  // namespace quire
