// What the loop knows of itself, as messages for operators (proto/v1/admin.proto).
//
// Thread safety: free functions, safe from any thread.
// Cost:          StateMessage a few microseconds for each hundred cells.
#ifndef QUIRE_SCHEDULER_RPC_STATE_MESSAGE_H_
#define QUIRE_SCHEDULER_RPC_STATE_MESSAGE_H_

#include "proto/v1/admin.pb.h"

#include "scheduler/loop/serving_state.h"
#include "scheduler/loop/state_calls.h"
#include "scheduler/rpc/served_model.h"

namespace quire {

v1::GetLoadResponse LoadMessage(const ServingState::Snapshot& serving);

// Readiness and ranks as `serving` says, all else as of the moment.
v1::GetStateResponse StateMessage(const ServedModel& model,
                                  ServingState::Snapshot serving,
                                  const LoopState& state);

// Where there is no moment: the load alone, as `serving` says.
v1::GetStateResponse StateMessage(const ServedModel& model, const ServingState::Snapshot& serving);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_STATE_MESSAGE_H_
