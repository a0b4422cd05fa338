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
  kAway,     // not reached, or not admitted
  kLoading,  // loads its model
  kWaiting,  // waits for other ranks, or for the epoch to begin
  kReady,    // computes steps
};

struct RankStatus {
  std::string address;
  RankPhase phase = RankPhase::kAway;
  KvMemory kv_memory;  // as reported; default while the worker is away or loading

  friend bool operator==(const RankStatus&, const RankStatus&) = default;
};

}  // namespace quire

#endif  // QUIRE_COMMON_STEP_RANK_STATUS_H_
