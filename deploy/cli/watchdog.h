// Watchdog tells when a process has given no sign of life for too long. The time from the start of
// the process to its first sign counts too. Each start that reaches the limit without any sign
// doubles the limit for the next start, up to 16 times the first limit. A sign resets the limit.
// With a fixed limit, a machine that is too slow for the limit could never start the process.
//
// Thread safety: one caller at a time. Watchdog has no clock: the caller passes the time.
#ifndef QUIRE_DEPLOY_CLI_WATCHDOG_H_
#define QUIRE_DEPLOY_CLI_WATCHDOG_H_

#include <cstdint>

#include "common/base/clock.h"

namespace quire {

class Watchdog {
 public:
  // Upper bound on the silence that one call of IsSilent adds. If more time has passed since the
  // previous call, the caller itself was stopped, and could not notice signs of life.
  static constexpr int64_t kMaxLookIntervalNs = 500 * kNanosPerMilli;

  explicit Watchdog(int64_t limit_ns) : limit_ns_(limit_ns) {}

  // Notes that a process starts.
  void OnStart(Instant now);

  // Notes a sign of life.
  void OnSign();

  // Returns true if the time without a sign of life has reached the limit. Then the time counts
  // again from 0. Call a few times a second.
  bool IsSilent(Instant now);

 private:
  int64_t limit_ns_;
  Instant last_look_ = 0;
  int64_t silence_ns_ = 0;
  bool has_sign_ = false;    // true if a sign has come since the start
  int num_mute_starts_ = 0;  // consecutive starts that reached the limit without a sign
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_WATCHDOG_H_
