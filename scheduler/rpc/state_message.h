// Builds messages for operators (proto/v1/admin.proto) from the state that the loop publishes.
//
// Thread safety: free functions, safe from any thread.
// Cost:          StateMessage takes a few microseconds per hundred cells of the block map.
#ifndef QUIRE_SCHEDULER_RPC_STATE_MESSAGE_H_
#define QUIRE_SCHEDULER_RPC_STATE_MESSAGE_H_

#include "proto/v1/admin.pb.h"

#include "scheduler/loop/serving_state.h"
#include "scheduler/loop/state_calls.h"
#include "scheduler/rpc/served_model.h"

namespace quire {

v1::GetLoadResponse LoadMessage(const ServingState::Snapshot& serving);

// Takes statistics, swapped bytes, time, steps and block map from `state`, and readiness, ranks and
// the bytes of a block from `serving`.
v1::GetStateResponse StateMessage(const ServedModel& model,
                                  ServingState::Snapshot serving,
                                  const LoopState& state);

// For callers without a LoopState: leaves steps and block_map unset.
v1::GetStateResponse StateMessage(const ServedModel& model, const ServingState::Snapshot& serving);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_STATE_MESSAGE_H_
