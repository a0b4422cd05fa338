#include "common/base/file_limit.h"

#include <algorithm>
#include <limits>

#include <sys/resource.h>

namespace quire {

void RaiseFileLimit() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    static_cast<void>(::setrlimit(RLIMIT_NOFILE, &limit));  // a failure leaves the old limit
  }
}

int FileLimit() {
  constexpr rlim_t kMost = std::numeric_limits<int>::max();
  rlimit limit = {};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? static_cast<int>(std::min(limit.rlim_cur, kMost))
                                                 : 0;
}

}  // namespace quire
