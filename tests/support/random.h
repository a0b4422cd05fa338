// Random is a seeded source for tests: the same numbers on every machine and compiler, which the
// distributions of <random> do not promise.
//
// Thread safety: not thread-safe.
// Source:        SplitMix64.
#ifndef QUIRE_TESTS_SUPPORT_RANDOM_H_
#define QUIRE_TESTS_SUPPORT_RANDOM_H_

#include <cstdint>

#include "common/base/check.h"
#include "common/base/splitmix64.h"

namespace quire {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() { return SplitMix64(state_); }

  // 0 .. bound - 1. REQUIRES: bound > 0.
  int32_t Below(int32_t bound) {
    QUIRE_CHECK(bound > 0);
    return static_cast<int32_t>(Next() % static_cast<uint64_t>(bound));
  }

  // low .. high. REQUIRES: low <= high.
  int32_t Between(int32_t low, int32_t high) { return low + Below(high - low + 1); }

  // True once in n on average. REQUIRES: n > 0.
  bool OneIn(int32_t n) { return Below(n) == 0; }

 private:
  uint64_t state_;
};

}  // namespace quire

#endif  // QUIRE_TESTS_SUPPORT_RANDOM_H_
