// SimRandom is the simulator's seeded source: the same numbers on every machine and compiler, which
// the distributions of <random> do not promise.
//
// Thread safety: not thread-safe.
// Source:        splitmix64, Steele, Lea and Flood 2014.
#ifndef QUIRE_SCHEDULER_SIM_SIM_RANDOM_H_
#define QUIRE_SCHEDULER_SIM_SIM_RANDOM_H_

#include <cmath>
#include <cstdint>

namespace quire {

class SimRandom {
 public:
  explicit SimRandom(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    state_ += 0x9E3779B97F4A7C15ULL;
    uint64_t word = state_;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ULL;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBULL;
    return word ^ (word >> 31);
  }

  // In [0, 1), 53 bits.
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

  // Mean 1.
  double Exponential() { return -std::log1p(-Uniform()); }

 private:
  uint64_t state_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_SIM_RANDOM_H_
