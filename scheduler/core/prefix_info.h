// The core's answers to an operator about pinned prefixes (pinned_prefixes.h).
//
// Thread safety: value types.
#ifndef QUIRE_SCHEDULER_CORE_PREFIX_INFO_H_
#define QUIRE_SCHEDULER_CORE_PREFIX_INFO_H_

#include <cstdint>

#include "common/base/ids.h"

namespace quire {

enum class PrefixState : uint8_t {
  kWaiting,    // waits for workers, or for a pool that has room for the prefix
  kComputing,  // the request that computes the prefix is waiting or running
  kPinned,
};

struct PrefixInfo {
  RequestId id;  // id of the request that computes the prefix
  PrefixState state = PrefixState::kWaiting;
  int32_t num_tokens = 0;  // tokens that a request with this beginning need not compute
  // Blocks that are or will be held for the prefix; with a sliding window, only the blocks in the
  // window of the token after the prefix.
  int32_t num_blocks = 0;
};

enum class PinOutcome : uint8_t {
  kAccepted,        // the prefix will be computed in its turn
  kAlreadyPinned,   // the same tokens and salt are pinned or being computed
  kDisabled,        // prefix caching is off (CoreConfig::prefix_caching)
  kNoLimits,        // no worker was ever ready
  kTooMany,         // the number of prefixes is at its bound
  kTooShort,        // the prefix fills no block
  kTooLong,         // the prefix and one more token exceed max_model_len
  kExceedsShare,    // all prefixes exceed max_pinned_share, or no room is left to compute this one
  kStarvesRequest,  // a live request would no longer fit the pool
};

struct PinResult {
  PinOutcome outcome = PinOutcome::kAccepted;
  RequestId id;  // id of the prefix, if the outcome is kAccepted or kAlreadyPinned
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_PREFIX_INFO_H_
