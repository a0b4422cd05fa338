// RankStatus reports the state of one rank's worker to operators.
//
// Thread safety: a value type.
#ifndef QUIRE_COMMON_STEP_RANK_STATUS_H_
#define QUIRE_COMMON_STEP_RANK_STATUS_H_

#include <cstdint>
#include <string>

#include "common/step/kv_memory.h"

namespace quire {

enum class RankPhase : uint8_t {
  kAway,     // the worker is not reached, or its handshake is not accepted (yet)
  kLoading,  // the worker loads its model
  kWaiting,  // the worker waits for other ranks, or for an epoch to begin
  kReady,    // the worker computes steps
};

struct RankStatus {
  std::string address;
  RankPhase phase = RankPhase::kAway;
  KvMemory kv_memory;  // as the worker reported it; default values while kAway or kLoading

  friend bool operator==(const RankStatus&, const RankStatus&) = default;
};

}  // namespace quire

#endif  // QUIRE_COMMON_STEP_RANK_STATUS_H_
