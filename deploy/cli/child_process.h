// ChildProcess starts a program, reads its standard output line by line, sends it signals and waits
// for its end. If the parent dies in any way, the child is killed by SIGKILL, which also ends a
// stopped child. So a restarted parent finds the ports free.
//
// Thread safety: one caller at a time.
#ifndef QUIRE_DEPLOY_CLI_CHILD_PROCESS_H_
#define QUIRE_DEPLOY_CLI_CHILD_PROCESS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include <sys/types.h>

namespace quire {

class ChildProcess {
 public:
  // Starts argv[0] with argv. Standard error is inherited, standard output is a pipe, standard
  // input is /dev/null. The child leads its own process group, so that a terminal's Ctrl-C reaches
  // only the parent, which then decides the order in which programs stop.
  static absl::StatusOr<ChildProcess> Start(const std::vector<std::string>& argv);

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();  // sends SIGKILL to a child that still runs, and reaps it

  pid_t pid() const { return pid_; }

  // The pipe, for poll(2). It becomes readable when output arrives or the output ends.
  int output_fd() const { return output_fd_; }

  // Reads available output. Returns the next complete line without its newline, or nullopt if there
  // is none. Never blocks.
  std::optional<std::string> TakeLine();

  // Returns the status of waitpid(2) if the child has ended, nullopt if it still runs. Never
  // blocks.
  std::optional<int> Poll();

  void Signal(int signal);

 private:
  ChildProcess(pid_t pid, int output_fd) : pid_(pid), output_fd_(output_fd) {}
  void Release();

  pid_t pid_ = -1;
  int output_fd_ = -1;
  std::string buffer_;
  std::optional<int> status_;
};

// Returns "exit code 3" or "signal 9", for example.
std::string DescribeExit(int wait_status);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_CHILD_PROCESS_H_
