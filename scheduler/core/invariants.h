// CheckInvariants checks the state of the core between two calls. Numbers such as (I5) name entries
// of the list of invariants in tests/scheduler/README.md.
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
