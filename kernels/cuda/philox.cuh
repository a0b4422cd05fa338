// Philox4x32-10, a pseudo-random function of a key and a counter. It has no state that threads
// would have to keep or share. Runs on host and device.
//
// Thread safety: any thread may call.
// Source:        Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3, section 3.
#ifndef QUIRE_KERNELS_CUDA_PHILOX_CUH_
#define QUIRE_KERNELS_CUDA_PHILOX_CUH_

#include <cstdint>

namespace quire::gpu {

struct PhiloxWords {
  uint32_t word[4];
};

// Returns four random words. Bits 0 to 31 of `key` are word 0 of the paper's key.
constexpr PhiloxWords Philox4x32(uint64_t key, PhiloxWords counter) {
  constexpr int kRounds = 10;
  auto key_low = static_cast<uint32_t>(key);
  auto key_high = static_cast<uint32_t>(key >> 32);
  PhiloxWords c = counter;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c.word[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * c.word[2];
    c = {{static_cast<uint32_t>(b >> 32) ^ c.word[1] ^ key_low,
          static_cast<uint32_t>(b),
          static_cast<uint32_t>(a >> 32) ^ c.word[3] ^ key_high,
          static_cast<uint32_t>(a)}};
    key_low += 0x9E3779B9;
    key_high += 0xBB67AE85;
  }
  return c;
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_PHILOX_CUH_
