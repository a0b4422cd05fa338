// `quire supervise`: runs quire_scheduler, quire_worker or quire_gateway in a container of its own,
// and starts it again at once when it dies or hangs. A container runtime would wait longer before
// each restart, up to minutes, and in that time streams would stand still.
//
// Thread safety: call from main, because the kernel kills the program when the thread that started
// it ends.
#ifndef QUIRE_DEPLOY_CLI_SUPERVISE_COMMAND_H_
#define QUIRE_DEPLOY_CLI_SUPERVISE_COMMAND_H_

#include <string>
#include <vector>

namespace quire {

// Runs the program `argv`, which must print the lines of quire_scheduler, quire_worker or
// quire_gateway, and passes these lines on. Ends after a signal of `signal_fd` (OpenSignalFd) has
// stopped the program. Also ends if the program was never ready and its exit code says that a
// restart would not help. Returns the program's last exit code, or EXIT_FAILURE if the program
// cannot be started.
int SuperviseProgram(std::vector<std::string> argv, int signal_fd);

// args: the words after "supervise". Returns the exit code.
int RunSupervise(const std::vector<std::string>& args);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_SUPERVISE_COMMAND_H_
