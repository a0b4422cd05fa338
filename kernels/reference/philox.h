// Philox4x32-10, a random function of a key and a counter. It keeps no state.
//
// Thread safety: any thread.
// Source:        Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3, section 3.2.
#ifndef QUIRE_KERNELS_REFERENCE_PHILOX_H_
#define QUIRE_KERNELS_REFERENCE_PHILOX_H_

#include <array>
#include <cstdint>

namespace quire::reference {

// The low word of `key` is the first of Philox's two key words.
inline std::array<uint32_t, 4> Philox4x32(uint64_t key, std::array<uint32_t, 4> counter) {
  auto key_low = static_cast<uint32_t>(key);
  auto key_high = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    uint64_t product_0 = uint64_t{0xD2511F53} * counter[0];
    uint64_t product_2 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product_2 >> 32) ^ counter[1] ^ key_low,
               static_cast<uint32_t>(product_2),
               static_cast<uint32_t>(product_0 >> 32) ^ counter[3] ^ key_high,
               static_cast<uint32_t>(product_0)};
    key_low += 0x9E3779B9;
    key_high += 0xBB67AE85;
  }
  return counter;
}

}  // namespace quire::reference

#endif  // QUIRE_KERNELS_REFERENCE_PHILOX_H_
