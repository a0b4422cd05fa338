// Time as a plain number. The scheduler core never reads a clock: its caller passes the time, so
// that the server, the simulator and the tests can each use a different clock.
#ifndef QUIRE_COMMON_BASE_CLOCK_H_
#define QUIRE_COMMON_BASE_CLOCK_H_

#include <chrono>
#include <cstdint>
#include <limits>

namespace quire {

// Nanoseconds since an arbitrary start, monotonic. Jumps of the wall clock do not affect an
// Instant.
using Instant = int64_t;

inline constexpr Instant kInfiniteFuture = std::numeric_limits<Instant>::max();
inline constexpr int64_t kNanosPerMicro = 1'000;
inline constexpr int64_t kNanosPerMilli = 1'000'000;
inline constexpr int64_t kNanosPerSecond = 1'000'000'000;
inline constexpr int64_t kNanosPerYear = int64_t{365} * 24 * 3600 * kNanosPerSecond;

// Returns the monotonic clock's time. Thread-safe.
inline Instant SteadyNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Returns nanoseconds since 1970 by the wall clock, which may jump. Thread-safe.
inline uint64_t WallClockNanos() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_CLOCK_H_
