// `quire supervise`: runs quire_scheduler or quire_worker in a container of its own, and starts it
// again at once when it dies or hangs. A container runtime would wait longer before each restart,
// up to minutes, and in that time streams would stand still.
//
// Thread safety: only from the thread that forks (child_process.h).
#ifndef QUIRE_DEPLOY_CLI_SUPERVISE_COMMAND_H_
#define QUIRE_DEPLOY_CLI_SUPERVISE_COMMAND_H_

#include <string>
#include <vector>

namespace quire {

// Runs the program `argv`, whose standard output has the lines of quire_scheduler or quire_worker,
// until it has ended for good. Passes these lines on. Returns the program's last exit code:
//   after a signal to `signal_fd` (OpenSignalFd), which is passed on;
//   if the program was never ready, and its exit code says that a restart would not help.
int SuperviseProgram(std::vector<std::string> argv, int signal_fd);

// args: the words after "supervise". Returns the exit code.
int RunSupervise(const std::vector<std::string>& args);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_SUPERVISE_COMMAND_H_
