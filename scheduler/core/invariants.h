// CheckInvariants is the list of what must always hold between two calls of the core.
//
// Thread safety: reads the state on its thread.
// Cost:          O(state). For tests, simulation and debug builds.
#ifndef QUIRE_SCHEDULER_CORE_INVARIANTS_H_
#define QUIRE_SCHEDULER_CORE_INVARIANTS_H_

#include "scheduler/core/core_state.h"

namespace quire {

// Aborts with the broken invariant.
void CheckInvariants(const CoreState& state);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_INVARIANTS_H_
