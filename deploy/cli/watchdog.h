// Watchdog tells when a process has given no sign of life for too long. The silence before the
// first sign counts as well, from the start of the process. Each start that was given up without a
// sign doubles the next limit, up to 16 times the first limit, until a sign comes. Else a machine
// that is too slow for the limit could never start the process.
//
// Thread safety: one caller at a time. It has no clock: the caller passes the time.
#ifndef QUIRE_DEPLOY_CLI_WATCHDOG_H_
#define QUIRE_DEPLOY_CLI_WATCHDOG_H_

#include <cstdint>

#include "common/base/clock.h"

namespace quire {

class Watchdog {
 public:
  // Upper bound on the silence counted between two looks. A caller that looks less often was
  // stopped itself, and has missed signs.
  static constexpr int64_t kMaxLookIntervalNs = 500 * kNanosPerMilli;

  explicit Watchdog(int64_t limit_ns) : limit_ns_(limit_ns) {}

  // Notes that a process starts.
  void OnStart(Instant now);

  // Notes a sign of life.
  void OnSign();

  // Returns true once the limit is reached; then the silence is counted anew. Call a few times a
  // second.
  bool IsSilent(Instant now);

 private:
  int64_t limit_ns_;
  Instant last_look_ = 0;
  int64_t silence_ns_ = 0;
  bool has_sign_ = false;    // a sign has come since the start
  int num_mute_starts_ = 0;  // starts in a row that were given up without a sign
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_WATCHDOG_H_
