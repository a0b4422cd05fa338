// UsableCpus returns the number of CPUs that this process may use at the same time. This is the
// number of CPUs in its affinity mask, or the CPU quota of its cgroup, rounded up, if that is less.
// The result is at least 1.
//
// Thread safety: any thread.
#ifndef QUIRE_COMMON_BASE_USABLE_CPUS_H_
#define QUIRE_COMMON_BASE_USABLE_CPUS_H_

namespace quire {

int UsableCpus();

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_USABLE_CPUS_H_
