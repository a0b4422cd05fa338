#include "common/base/thread_times.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

#include "common/base/clock.h"
#include "common/base/string_view.h"

namespace quire {
namespace {

// File with the calling thread's times. It has three fields: nanoseconds on a CPU, nanoseconds
// runnable without a CPU, number of time slices.
constexpr char kSchedstat[] = "/proc/thread-self/schedstat";
constexpr size_t kSchedstatBytes = 64;  // three numbers of 20 digits

std::optional<int64_t> CpuWaitNanos(int fd) {
  std::array<char, kSchedstatBytes> text{};
  const ssize_t size = ::pread(fd, text.data(), text.size(), 0);
  if (size <= 0) {
    return std::nullopt;
  }
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(text.data(), static_cast<size_t>(size)), ' ');
  int64_t wait_ns = 0;
  if (fields.size() < 2 || !absl::SimpleAtoi(fields[1], &wait_ns)) {
    return std::nullopt;
  }
  return wait_ns;
}

}  // namespace

ThreadTimesReader::ThreadTimesReader() : schedstat_(::open(kSchedstat, O_RDONLY | O_CLOEXEC)) {}

ThreadTimes ThreadTimesReader::Read() const {
  return {.cpu_ns = ThreadCpuNanos(),
          .cpu_wait_ns = schedstat_.is_open() ? CpuWaitNanos(schedstat_.fd()) : std::nullopt};
}

int64_t ThreadCpuNanos() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * kNanosPerSecond + time.tv_nsec;
}

}  // namespace quire
