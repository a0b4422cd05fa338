// SupervisedChild keeps a program running. It starts an ended program again after a pause, and
// kills a program that gives no sign of life.
//
// Thread safety: one caller at a time. No call blocks.
#ifndef QUIRE_DEPLOY_CLI_SUPERVISED_CHILD_H_
#define QUIRE_DEPLOY_CLI_SUPERVISED_CHILD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "common/base/clock.h"
#include "deploy/cli/child_process.h"
#include "deploy/cli/restart_policy.h"
#include "deploy/cli/watchdog.h"

namespace quire {

class SupervisedChild {
 public:
  // `name` is for the log. `max_silence_ns` bounds the time without a sign of life (watchdog.h).
  SupervisedChild(std::string name, std::vector<std::string> argv, int64_t max_silence_ns);

  // Adds arguments to the command line of later starts.
  void AddArguments(const std::vector<std::string>& arguments);

  // Starts the program if it does not run and the pause since its last end is over. Returns true if
  // this call started the program. Errors: those of ChildProcess::Start; the next try comes after a
  // pause.
  absl::StatusOr<bool> MaybeStart(Instant now);

  // The first call after the program has ended returns the status of waitpid(2); other calls return
  // nullopt. Kills a program without a sign of life, so call it a few times a second.
  std::optional<int> TakeEnd(Instant now);

  // Logs the end that TakeEnd reported, and the pause until the next start.
  void LogEnd(int wait_status) const;

  void OnSign() { watchdog_.OnSign(); }
  void OnUseful() { policy_.OnUseful(); }

  void Kill(std::string_view why);

  // Returns the running program, or null.
  ChildProcess* process() { return process_.has_value() ? &*process_ : nullptr; }
  const std::string& name() const { return name_; }
  // Returns true if the last process was killed because it gave no sign of life.
  bool was_silent() const { return was_silent_; }

 private:
  const std::string name_;
  std::vector<std::string> argv_;
  std::optional<ChildProcess> process_;
  RestartPolicy policy_;
  Watchdog watchdog_;
  Instant start_at_ = 0;
  int64_t pause_ns_ = 0;
  bool was_silent_ = false;
  pid_t pid_ = -1;  // process id of the last start
};

// Returns the folder of this program, which also holds the programs to supervise.
std::string ProgramFolder();

// Returns the file descriptor that delivers a supervisor's signals: SIGINT, SIGTERM, SIGHUP and
// SIGCHLD. Blocks these signals first; threads that libraries start later inherit the mask, so the
// signals arrive only through the descriptor.
int OpenSignalFd();

// Returns true if the program ended with an exit code that says that a restart would not help: it
// cannot listen, or its flags, model, memory or device are unusable. Crashes have other codes.
bool IsHopeless(int wait_status);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_SUPERVISED_CHILD_H_
