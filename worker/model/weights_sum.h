// WeightsSum is a checksum of all bytes of a model's weights, equal for every number of ranks. Each
// rank sums the bytes that it reads, and the sums of all ranks add up to the sum of the whole
// model.
//
// A tensor is a sequence of lines of 64 words of 32 bits. Each word is multiplied by a factor that
// depends on the word's index in the line. Each line's sum is multiplied by a factor that depends
// on the line's index in the tensor. All sums are modulo 2^64. The factors are odd and derived from
// the tensor's name. A change of one word always changes the sum, and any other accidental change
// almost certainly does. An attacker can construct other weights with the same sum.
//
// Thread safety: a value type.
// Cost:          one multiplication per word; bytes that were just read are still in the cache.
#ifndef QUIRE_WORKER_MODEL_WEIGHTS_SUM_H_
#define QUIRE_WORKER_MODEL_WEIGHTS_SUM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace quire {

class WeightsSum {
 public:
  static constexpr size_t kWordsPerLine = 64;

  // Factors of the words with even and with odd index in a line. Each factor is an odd number of 32
  // bits. Aligned for vector loads.
  struct alignas(32) Factors {
    std::array<uint64_t, kWordsPerLine / 2> even;
    std::array<uint64_t, kWordsPerLine / 2> odd;
  };

  // `name`: the tensor's name, from which the factors are derived.
  explicit WeightsSum(std::string_view name);

  // Returns what `bytes` add to the sum. They are the tensor's bytes from byte `begin` on, and may
  // begin or end inside a word.
  uint64_t Of(int64_t begin, std::span<const std::byte> bytes) const;

 private:
  uint64_t seed_;
  Factors factors_ = {};
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_WEIGHTS_SUM_H_
