// RankStatus says where the worker of one rank stands, for whoever operates the server.
//
// Thread safety: a value type.
#ifndef QUIRE_COMMON_STEP_RANK_STATUS_H_
#define QUIRE_COMMON_STEP_RANK_STATUS_H_

#include <cstdint>
#include <string>

#include "common/step/kv_memory.h"

namespace quire {

enum class RankPhase : uint8_t {
  kAway,     // not reached, or not let in
  kLoading,  // its model
  kWaiting,  // for other ranks, or for the epoch to begin
  kReady,    // it computes steps
};

struct RankStatus {
  std::string address;
  RankPhase phase = RankPhase::kAway;
  KvMemory kv_memory;  // as it said; nothing while it is away or loads

  friend bool operator==(const RankStatus&, const RankStatus&) = default;
};

}  // namespace quire

#endif  // QUIRE_COMMON_STEP_RANK_STATUS_H_
