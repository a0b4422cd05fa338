#include "common/base/usable_cpus.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

namespace quire {
namespace {

// Returns the cgroup's quota in CPUs, or infinity if there is none.
double QuotaCpus() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");  // "<quota> <period>" in us, or "max <period>"
  double quota = 0.0;
  double period = 0.0;
  const bool is_limited = static_cast<bool>(file >> quota >> period);
  return is_limited && quota > 0.0 && period > 0.0 ? quota / period
                                                   : std::numeric_limits<double>::infinity();
}

}  // namespace

int UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) {
    return 1;
  }
  const double cpus = std::min(std::ceil(QuotaCpus()), static_cast<double>(CPU_COUNT(&set)));
  return std::max(1, static_cast<int>(cpus));
}

}  // namespace quire
