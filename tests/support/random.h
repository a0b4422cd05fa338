// Random is a seeded generator for tests. Its numbers are the same on every machine and with every
// compiler, which the distributions of <random> do not guarantee.
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

  // Returns a number in [0, bound). REQUIRES: bound > 0.
  int32_t Below(int32_t bound) {
    QUIRE_CHECK(bound > 0);
    return static_cast<int32_t>(Next() % static_cast<uint64_t>(bound));
  }

  // Returns a number in [low, high]. REQUIRES: low <= high.
  int32_t Between(int32_t low, int32_t high) { return low + Below(high - low + 1); }

  // Returns true with probability 1 / n. REQUIRES: n > 0.
  bool OneIn(int32_t n) { return Below(n) == 0; }

 private:
  uint64_t state_;
};

}  // namespace quire

#endif  // QUIRE_TESTS_SUPPORT_RANDOM_H_
