#include "common/flags/process.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "common/base/error.h"
#include "common/base/exit_codes.h"
#include "common/base/printable.h"
#include "common/base/string_view.h"

namespace quire {

sigset_t PrepareSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);  // whoever reads our output may go away
  return signals;
}

void ExitWith(const absl::Status& status, std::string_view prefix, int exit_code) {
  std::string line = OneLine(ToStd(status.message()));
  if (!line.starts_with(prefix)) {
    line.insert(0, prefix);
  }
  std::fprintf(stderr, "%s\n", line.c_str());
  // Threads may run by now: nothing is destroyed under them.
  std::_Exit(ReasonOf(status) == "MEMORY" ? kExitMemory : exit_code);
}

}  // namespace quire
