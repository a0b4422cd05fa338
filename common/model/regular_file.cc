#include "common/model/regular_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/model/load_error.h"

#include <sys/stat.h>

namespace quire {

absl::StatusOr<RegularFile> RegularFile::Open(const std::string& path, std::string name) {
  RegularFile file;
  file.name_ = std::move(name);
  // If the path is a FIFO, open(2) without O_NONBLOCK would wait for a writer. O_NONBLOCK has no
  // effect on regular files.
  file.fd_ = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.fd_.is_open()) {
    if (errno == ENOENT) {
      return Error(absl::StatusCode::kNotFound,
                   "MODEL_FILE",
                   absl::StrCat("load: ", PrintableName(file.name_), ": no such file"));
    }
    return LoadError(file.name_,
                     absl::StrCat("cannot be opened: ", std::generic_category().message(errno)));
  }
  struct stat info = {};
  if (::fstat(file.fd_.fd(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return LoadError(file.name_, "is not a regular file");
  }
  file.bytes_ = info.st_size;
  return file;
}

absl::Status RegularFile::ReadAt(int64_t offset, std::span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    ssize_t n = ::pread(fd_.fd(),
                        out.data() + done,
                        out.size() - done,
                        static_cast<off_t>(offset + static_cast<int64_t>(done)));
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      return LoadError(name_,
                       absl::StrCat("cannot be read: ", std::generic_category().message(errno)));
    }
    if (n == 0) {
      return LoadError(name_, "shrank while being read");
    }
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

void RegularFile::ExpectSequentialReads() const {
  ::posix_fadvise(fd_.fd(), 0, 0, POSIX_FADV_SEQUENTIAL);
}

void RegularFile::DropCached(int64_t offset, int64_t bytes) const {
  ::posix_fadvise(fd_.fd(), offset, bytes, POSIX_FADV_DONTNEED);
}

}  // namespace quire
