// FoldHash hashes a list of 64-bit words to one word, at a few cycles per word. Every bit of every
// word affects the result. The hash finds accidental differences; it is no defense against forgery.
// The same input gives the same value on all machines of one byte order.
//
// Thread safety: one caller at a time.
// Source:        the multiply-and-fold mixing step of wyhash, Wang Yi.
#ifndef QUIRE_COMMON_BASE_FOLD_HASH_H_
#define QUIRE_COMMON_BASE_FOLD_HASH_H_

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace quire {

class FoldHash {
 public:
  void Add(uint64_t word) {
    __uint128_t product = static_cast<__uint128_t>(state_ ^ word) * kMultiplier;
    state_ = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64) ^ kIncrement;
  }
  void AddInt(int64_t value) { Add(static_cast<uint64_t>(value)); }
  void AddFloat(float value) { Add(std::bit_cast<uint32_t>(value)); }
  void AddInts(std::span<const int32_t> values) {
    Add(values.size());
    for (int32_t value : values) {
      AddInt(value);
    }
  }
  void AddBytes(std::string_view bytes) {
    Add(bytes.size());
    while (!bytes.empty()) {
      uint64_t word = 0;
      const size_t size = bytes.size() < sizeof(word) ? bytes.size() : sizeof(word);
      std::memcpy(&word, bytes.data(), size);
      Add(word);
      bytes.remove_prefix(size);
    }
  }
  uint64_t value() const { return state_; }

 private:
  static constexpr uint64_t kMultiplier = 0x9FB21C651E98DF25ULL;
  static constexpr uint64_t kIncrement = 0xA0761D6478BD642FULL;
  uint64_t state_ = kIncrement;
};

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_FOLD_HASH_H_
