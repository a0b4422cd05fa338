#include "deploy/cli/supervised_child.h"

#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/exit_codes.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

#include <sys/signalfd.h>
#include <sys/wait.h>

namespace quire {

SupervisedChild::SupervisedChild(std::string name,
                                 std::vector<std::string> argv,
                                 int64_t max_silence_ns)
    : name_(std::move(name)), argv_(std::move(argv)), watchdog_(max_silence_ns) {}

void SupervisedChild::AddArguments(const std::vector<std::string>& arguments) {
  argv_.insert(argv_.end(), arguments.begin(), arguments.end());
}

absl::StatusOr<bool> SupervisedChild::MaybeStart(Instant now) {
  if (process_.has_value() || now < start_at_) {
    return false;
  }
  policy_.OnStart(now);
  watchdog_.OnStart(now);
  absl::StatusOr<ChildProcess> process = ChildProcess::Start(argv_);
  if (!process.ok()) {
    start_at_ = now + policy_.OnEnd(now);
    return process.status();
  }
  process_ = *std::move(process);
  pid_ = process_->pid();
  was_silent_ = false;
  return true;
}

std::optional<int> SupervisedChild::TakeEnd(Instant now) {
  if (!process_.has_value()) {
    return std::nullopt;
  }
  const std::optional<int> wait_status = process_->Poll();
  if (wait_status.has_value()) {
    process_.reset();
    pause_ns_ = policy_.OnEnd(now);
    start_at_ = now + pause_ns_;
  } else if (watchdog_.IsSilent(now)) {
    was_silent_ = true;
    Kill("it gives no sign of life");
  }
  return wait_status;
}

void SupervisedChild::LogEnd(int wait_status) const {
  LogError("a program of the server ended and is started again",
           {{"program", name_},
            {"pid", absl::StrCat(pid_)},
            {"how", DescribeExit(wait_status)},
            {"served", policy_.is_useful() ? "yes" : "no"},
            {"pause_ms", absl::StrCat(pause_ns_ / kNanosPerMilli)}});
}

void SupervisedChild::Kill(std::string_view why) {
  LogError("a program of the server is killed",
           {{"program", name_}, {"pid", absl::StrCat(pid_)}, {"why", std::string(why)}});
  process_->Signal(SIGKILL);
}

std::string ProgramFolder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

int OpenSignalFd() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGINT, SIGTERM, SIGCHLD, SIGHUP}) {
    sigaddset(&signals, signal);
  }
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // A write to a closed standard output must fail instead of ending the process.
  ::signal(SIGPIPE, SIG_IGN);
  return ::signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
}

bool IsHopeless(int wait_status) {
  if (!WIFEXITED(wait_status)) {
    return false;
  }
  const int code = WEXITSTATUS(wait_status);
  // A program that cannot listen exits with EXIT_FAILURE.
  return code == EXIT_FAILURE || code == kExitUsage || code == kExitModel || code == kExitMemory ||
         code == kExitDevice;
}

}  // namespace quire
