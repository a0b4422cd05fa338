// WeightsSum is a number by which all bytes of a model's weights are compared, however many ranks
// share them: each rank adds up what it reads, and the sums of all ranks add up to that of the
// whole.
//
// Tensors are lines of 64 words of 32 bits. A line adds (the sum of word * a number of its place
// in the line) * a number of its place in the tensor, modulo 2^64; the numbers are odd and come
// from the tensor's name. One word that is changed changes the sum for certain, any other accident
// all but certainly. Whoever means harm finds another file with the same sum.
//
// Thread safety: a value type.
// Cost:          a multiplication a word; bytes that were just read are still in the cache.
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

  // Of words at even and at odd places: odd numbers of 32 bits. Vectors are loaded from there.
  struct alignas(32) Factors {
    std::array<uint64_t, kWordsPerLine / 2> even;
    std::array<uint64_t, kWordsPerLine / 2> odd;
  };

  // Of a tensor.
  explicit WeightsSum(std::string_view name);

  // What these bytes, which begin at this byte of the tensor, add. A word may be cut anywhere.
  uint64_t Of(int64_t begin, std::span<const std::byte> bytes) const;

 private:
  uint64_t seed_;
  Factors factors_ = {};
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_WEIGHTS_SUM_H_
