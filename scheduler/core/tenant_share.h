// The share of a tenant in a bounded queue: a tenant may hold at most `factor` times the free room
// that all tenants together leave. A single tenant gets factor / (factor + 1) of the bound, and
// less beside other tenants that fill their shares. Some room is always left for a new tenant, no
// matter how many tenants fill their shares.
//
// Thread safety: a free function, safe from any thread.
// Source:        dynamic thresholds, Choudhury and Hahne 1998.
#ifndef QUIRE_SCHEDULER_CORE_TENANT_SHARE_H_
#define QUIRE_SCHEDULER_CORE_TENANT_SHARE_H_

#include <cstdint>

namespace quire {

// The `factor` for the bound on resumed requests: a single tenant may fill two thirds of the bound.
inline constexpr int64_t kShareFactorOfResumed = 2;

// Returns true if a tenant that holds num_held must not get num_more in addition. All tenants
// together hold num_of_all, of at most max. REQUIRES: no argument is negative; factor >= 1;
// num_of_all + num_more <= max.
inline bool IsShareFull(
    int64_t num_held, int64_t num_more, int64_t num_of_all, int64_t max, int64_t factor) {
  const int64_t num_free = max - (num_of_all + num_more);
  return (num_held + num_more + factor - 1) / factor > num_free;  // rounds up; cannot overflow
}

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_TENANT_SHARE_H_
