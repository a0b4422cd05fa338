#include "common/base/read_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

#include "common/base/error.h"

#include <sys/stat.h>

namespace quire {

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes) {
  // With O_NONBLOCK, opening a FIFO does not wait for a writer. The flag has no effect on regular
  // files.
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return Error(
        errno == ENOENT ? absl::StatusCode::kNotFound : absl::StatusCode::kInvalidArgument,
        "FILE",
        absl::StrCat(path, ": cannot be opened: ", std::generic_category().message(errno)));
  }
  absl::Cleanup close_file = [fd] { ::close(fd); };
  struct stat info = {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    return InvalidArgument("FILE", absl::StrCat(path, ": is not a regular file"));
  }
  if (info.st_size > max_bytes) {
    return InvalidArgument(
        "FILE",
        absl::StrCat(path, ": too large (got ", info.st_size, " bytes, limit ", max_bytes, ")"));
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    ssize_t n = ::read(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      return InvalidArgument("FILE", absl::StrCat(path, ": shrank while being read"));
    }
    done += static_cast<size_t>(n);
  }
  return text;
}

}  // namespace quire
