// FuzzedFile writes the bytes of an execution to a file in memory, for code that opens a path, and
// CheckRefusal checks the error of code that refuses them.
//
// Thread safety: for one thread.
#ifndef QUIRE_TESTS_FUZZ_FUZZED_FILE_H_
#define QUIRE_TESTS_FUZZ_FUZZED_FILE_H_

#include <unistd.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/match.h"

#include "common/base/check.h"
#include "common/base/error.h"

#include <sys/mman.h>

namespace quire {

// Returns the path of the file, which all executions share.
inline const std::string& FuzzedFile(std::string_view bytes) {
  static const int fd = ::memfd_create("fuzz", MFD_CLOEXEC);
  static const std::string path = "/proc/self/fd/" + std::to_string(fd);
  QUIRE_CHECK(fd >= 0 && ::ftruncate(fd, 0) == 0);
  QUIRE_CHECK_EQ(::pwrite(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  return path;
}

inline void CheckRefusal(const absl::Status& status) {
  QUIRE_CHECK(!ReasonOf(status).empty());
  QUIRE_CHECK(!absl::StrContains(status.message(), '\n'));
  QUIRE_CHECK_LE(status.message().size(), size_t{2000});
}

}  // namespace quire

#endif  // QUIRE_TESTS_FUZZ_FUZZED_FILE_H_
