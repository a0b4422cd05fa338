#include "scheduler/step_log/step_log_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/log.h"

#include <sys/stat.h>

namespace quire {
namespace {

std::string Describe(int error_number) {
  return std::error_code(error_number, std::generic_category()).message();
}

absl::Status CannotMake(const std::string& path) {
  return Error(absl::StatusCode::kFailedPrecondition,
               "STEP_LOG",
               absl::StrCat("--step-log: cannot create ", path, ": ", Describe(errno)));
}

// Returns 0, or the errno of the failure.
int WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t size = ::write(fd, bytes.data(), bytes.size());
    if (size < 0 && errno != EINTR) {
      return errno;
    }
    bytes.remove_prefix(size < 0 ? 0 : static_cast<size_t>(size));
  }
  return 0;
}

}  // namespace

StepLogFile::StepLogFile(std::string path, size_t buffer_bytes)
    : path_(std::move(path)), buffer_bytes_(buffer_bytes) {}

absl::Status StepLogFile::Open() {
  struct stat old {};
  const bool is_there = ::stat(path_.c_str(), &old) == 0;
  if (is_there && !S_ISREG(old.st_mode)) {
    return Error(absl::StatusCode::kFailedPrecondition,
                 "STEP_LOG",
                 absl::StrCat("--step-log: must be a regular file: ", path_));
  }
  if (is_there && std::rename(path_.c_str(), absl::StrCat(path_, ".previous").c_str()) != 0) {
    return CannotMake(path_);
  }
  // O_EXCL refuses a file that has appeared at path_ since the rename: it could be a pipe, and
  // opening a pipe would block.
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_CREAT | O_EXCL, S_IRUSR | S_IWUSR);
  if (fd_ < 0) {
    return CannotMake(path_);
  }
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

StepLogFile::~StepLogFile() {
  if (!thread_.joinable()) {
    return;  // never opened
  }
  {
    const MutexLock lock(mutex_);
    closing_ = true;
  }
  has_bytes_.NotifyOne();
  thread_.join();
  ::close(fd_);
}

void StepLogFile::Write(std::string_view bytes) {
  bool was_empty = false;
  bool is_too_much = false;
  {
    const MutexLock lock(mutex_);
    if (has_ended_) {
      return;
    }
    is_too_much = waiting_.size() + bytes.size() > buffer_bytes_;
    if (!is_too_much) {
      was_empty = waiting_.empty();
      waiting_.append(bytes);
    }
  }
  if (is_too_much) {
    End("the disk is too slow");
  } else if (was_empty) {
    has_bytes_.NotifyOne();
  }
}

void StepLogFile::Run() {
  std::string bytes;
  for (;;) {
    {
      const MutexLock lock(mutex_);
      while (!closing_ && waiting_.empty()) {
        has_bytes_.Wait(mutex_);
      }
      if (waiting_.empty()) {
        return;
      }
      bytes.clear();
      bytes.swap(waiting_);
    }
    const int error_number = WriteAll(fd_, bytes);
    if (error_number != 0) {
      End(Describe(error_number));
      return;
    }
  }
}

void StepLogFile::End(const std::string& reason) {
  {
    const MutexLock lock(mutex_);
    if (has_ended_) {
      return;
    }
    has_ended_ = true;
  }
  LogWarning("step log ended early; later records are missing",
             {{"path", path_}, {"reason", reason}});
}

}  // namespace quire
