// SplitMix64 is a small seeded generator with the same output on every machine and compiler. It
// passes statistical tests; it is not cryptographic.
//
// Thread safety: any thread, if each thread has its own state.
// Source:        Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators".
#ifndef QUIRE_COMMON_BASE_SPLITMIX64_H_
#define QUIRE_COMMON_BASE_SPLITMIX64_H_

#include <cstdint>

namespace quire {

// Returns the next word and advances state. The first state is the seed and can be any number.
inline uint64_t SplitMix64(uint64_t& state) {
  state += 0x9E3779B97F4A7C15ULL;
  uint64_t word = state;
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ULL;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EBULL;
  return word ^ (word >> 31);
}

// Returns the state after num_words more calls of SplitMix64, in constant time.
inline uint64_t SplitMix64After(uint64_t state, uint64_t num_words) {
  return state + num_words * 0x9E3779B97F4A7C15ULL;
}

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_SPLITMIX64_H_
