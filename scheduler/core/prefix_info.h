// The core's answers to an operator about pinned prefixes (pinned_prefixes.h).
//
// Thread safety: value types.
#ifndef QUIRE_SCHEDULER_CORE_PREFIX_INFO_H_
#define QUIRE_SCHEDULER_CORE_PREFIX_INFO_H_

#include <cstdint>

#include "common/base/ids.h"

namespace quire {

enum class PrefixState : uint8_t {
  kWaiting,    // for workers, or for a pool that has room for it
  kComputing,  // a request computes it, or waits for its turn
  kPinned,
};

struct PrefixInfo {
  RequestId id;  // of the request that computes it
  PrefixState state = PrefixState::kWaiting;
  int32_t num_tokens = 0;  // that a request with this beginning need not compute
  int32_t num_blocks = 0;  // that are held for it, or will be; with a sliding window only the last
};

enum class PinOutcome : uint8_t {
  kAccepted,        // computed in its turn
  kAlreadyPinned,   // or being computed: the same tokens and salt
  kDisabled,        // there is no prefix cache to pin in
  kNoLimits,        // no worker was ever ready
  kTooMany,         // prefixes are pinned already
  kTooShort,        // fills no block
  kTooLong,         // leaves no room for a token within max_model_len
  kExceedsShare,    // of the pool, together with the prefixes that are pinned
  kStarvesRequest,  // a live request would no longer fit the pool
};

struct PinResult {
  PinOutcome outcome = PinOutcome::kAccepted;
  RequestId id;  // of the prefix, when it is accepted or there already
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_PREFIX_INFO_H_
