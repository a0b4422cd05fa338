// Philox4x32-10 turns a key and a counter into four random words, without any state.
//
// Thread safety: a pure function.
// Source: Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3, section 3.
#ifndef QUIRE_KERNELS_CPU_PHILOX_H_
#define QUIRE_KERNELS_CPU_PHILOX_H_

#include <array>
#include <cstdint>

namespace quire {

using PhiloxWords = std::array<uint32_t, 4>;

// The low word of `key` is the first of Philox's two key words.
constexpr PhiloxWords Philox4x32(uint64_t key, PhiloxWords counter) {
  constexpr int kRounds = 10;
  auto key_low = static_cast<uint32_t>(key);
  auto key_high = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key_low,
               static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key_high,
               static_cast<uint32_t>(a)};
    key_low += 0x9E3779B9;
    key_high += 0xBB67AE85;
  }
  return counter;
}

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_PHILOX_H_
