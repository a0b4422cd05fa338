// UsableCpus is the number of CPUs that this process may compute on at the same time: its affinity,
// and what the control group of a container grants, rounded up; at least 1.
//
// Thread safety: any thread.
#ifndef QUIRE_COMMON_BASE_USABLE_CPUS_H_
#define QUIRE_COMMON_BASE_USABLE_CPUS_H_

namespace quire {

int UsableCpus();

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_USABLE_CPUS_H_
