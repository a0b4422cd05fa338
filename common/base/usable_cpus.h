// UsableCpus returns the number of CPUs that this process may use at the same time: the number of
// CPUs in its affinity mask or its cgroup's CPU quota (rounded up), whichever is less, but at least
// 1.
//
// Thread safety: any thread.
#ifndef QUIRE_COMMON_BASE_USABLE_CPUS_H_
#define QUIRE_COMMON_BASE_USABLE_CPUS_H_

namespace quire {

int UsableCpus();

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_USABLE_CPUS_H_
