// The share of a tenant of what waits somewhere: it may not come to hold more than it leaves free
// for others, times a factor. Alone it gets factor / (factor + 1) of the bound, beside others that
// do likewise less, and however many fill what they may, something is left for one who comes new.
//
// Thread safety: free functions.
// Source:        dynamic thresholds, Choudhury and Hahne 1998.
#ifndef QUIRE_SCHEDULER_CORE_TENANT_SHARE_H_
#define QUIRE_SCHEDULER_CORE_TENANT_SHARE_H_

#include <cstdint>

namespace quire {

// Who comes back to a scheduler that lost all of its requests may bring two thirds of them alone.
inline constexpr int64_t kShareFactorOfResumed = 2;

// Whether a tenant that holds so much may not have so much more, of the max that bounds all
// tenants. REQUIRES: nothing is negative, factor >= 1, num_of_all + num_more <= max.
inline bool IsShareFull(
    int64_t num_held, int64_t num_more, int64_t num_of_all, int64_t max, int64_t factor) {
  const int64_t num_free = max - (num_of_all + num_more);
  return (num_held + num_more + factor - 1) / factor > num_free;  // rounded up; no overflow
}

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_TENANT_SHARE_H_
