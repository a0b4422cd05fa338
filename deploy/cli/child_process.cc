#include "deploy/cli/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

#include <sys/prctl.h>
#include <sys/wait.h>

namespace quire {
namespace {

// Runs in the forked child, so it makes only async-signal-safe calls until exec.
[[noreturn]] void Exec(char* const* argv, int output_fd, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) {
    ::_exit(127);  // the parent died before prctl took effect
  }
  sigset_t none;
  sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
  int null_fd = ::open("/dev/null", O_RDONLY);
  ::dup2(null_fd, STDIN_FILENO);
  ::dup2(output_fd, STDOUT_FILENO);
  ::execv(argv[0], argv);
  ::_exit(127);
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::Start(const std::vector<std::string>& argv) {
  if (::access(argv[0].c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(argv[0], ": is not an executable file"));
  }
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("pipe: ", std::generic_category().message(errno)));
  }
  std::vector<char*> raw;
  raw.reserve(argv.size() + 1);
  for (const std::string& arg : argv) {
    raw.push_back(const_cast<char*>(arg.c_str()));
  }
  raw.push_back(nullptr);
  pid_t parent = ::getpid();
  pid_t pid = ::fork();
  if (pid == 0) {
    Exec(raw.data(), fds[1], parent);
  }
  ::close(fds[1]);
  if (pid < 0) {
    ::close(fds[0]);
    return absl::InternalError(absl::StrCat("fork: ", std::generic_category().message(errno)));
  }
  ::fcntl(fds[0], F_SETFL, O_NONBLOCK);
  return ChildProcess(pid, fds[0]);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      output_fd_(std::exchange(other.output_fd_, -1)),
      buffer_(std::move(other.buffer_)),
      status_(other.status_) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this != &other) {
    Release();
    pid_ = std::exchange(other.pid_, -1);
    output_fd_ = std::exchange(other.output_fd_, -1);
    buffer_ = std::move(other.buffer_);
    status_ = other.status_;
  }
  return *this;
}

ChildProcess::~ChildProcess() { Release(); }

void ChildProcess::Release() {
  if (pid_ > 0 && !Poll().has_value()) {
    ::kill(pid_, SIGKILL);
    int status = 0;
    ::waitpid(pid_, &status, 0);
  }
  if (output_fd_ >= 0) {
    ::close(output_fd_);
  }
  pid_ = -1;
  output_fd_ = -1;
}

std::optional<std::string> ChildProcess::TakeLine() {
  char chunk[4096];
  ssize_t n = 0;
  while ((n = ::read(output_fd_, chunk, sizeof(chunk))) > 0) {
    buffer_.append(chunk, static_cast<size_t>(n));
  }
  size_t end = buffer_.find('\n');
  if (end == std::string::npos) {
    return std::nullopt;
  }
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  return line;
}

std::optional<int> ChildProcess::Poll() {
  int status = 0;
  if (!status_.has_value() && ::waitpid(pid_, &status, WNOHANG) == pid_) {
    status_ = status;
  }
  return status_;
}

void ChildProcess::Signal(int signal) {
  if (!Poll().has_value()) {
    ::kill(pid_, signal);
  }
}

std::string DescribeExit(int wait_status) {
  return WIFSIGNALED(wait_status) ? absl::StrCat("signal ", WTERMSIG(wait_status))
                                  : absl::StrCat("exit code ", WEXITSTATUS(wait_status));
}

}  // namespace quire
