// SimRandom is the simulator's seeded source of random numbers. It gives the same numbers on every
// machine and compiler, which the distributions of <random> do not promise.
//
// Thread safety: not thread-safe.
// Source:        SplitMix64.
#ifndef QUIRE_SCHEDULER_SIM_SIM_RANDOM_H_
#define QUIRE_SCHEDULER_SIM_SIM_RANDOM_H_

#include <cmath>
#include <cstdint>

#include "common/base/splitmix64.h"

namespace quire {

class SimRandom {
 public:
  explicit SimRandom(uint64_t seed) : state_(seed) {}

  uint64_t Next() { return SplitMix64(state_); }

  // Returns a number in [0, 1) with 53 random bits.
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

  // Returns an exponentially distributed number with mean 1.
  double Exponential() { return -std::log1p(-Uniform()); }

 private:
  uint64_t state_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_SIM_RANDOM_H_
