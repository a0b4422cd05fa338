// CheckInvariants checks all that must hold between two calls of the core. Numbers such as (I5) are
// those of the list in tests/scheduler/README.md.
//
// Thread safety: must be called on the thread that owns the state.
// Cost:          O(state). For tests, simulation and debug builds.
#ifndef QUIRE_SCHEDULER_CORE_INVARIANTS_H_
#define QUIRE_SCHEDULER_CORE_INVARIANTS_H_

#include "scheduler/core/core_state.h"

namespace quire {

// Aborts if an invariant is broken, with a message that names it.
void CheckInvariants(const CoreState& state);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_INVARIANTS_H_
