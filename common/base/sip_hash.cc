#include "common/base/sip_hash.h"

#include <bit>
#include <cstring>

namespace quire {
namespace {

class State {
 public:
  explicit State(const Hash128& key)
      : v0_(0x736F6D6570736575ULL ^ key.low),
        v1_(0x646F72616E646F6DULL ^ key.high ^ 0xEE),
        v2_(0x6C7967656E657261ULL ^ key.low),
        v3_(0x7465646279746573ULL ^ key.high) {}

  void Absorb(uint64_t word) {
    v3_ ^= word;
    Rounds(2);
    v0_ ^= word;
  }

  Hash128 Finish() {
    Hash128 hash;
    v2_ ^= 0xEE;
    Rounds(4);
    hash.low = v0_ ^ v1_ ^ v2_ ^ v3_;
    v1_ ^= 0xDD;
    Rounds(4);
    hash.high = v0_ ^ v1_ ^ v2_ ^ v3_;
    return hash;
  }

 private:
  void Rounds(int count) {
    for (; count > 0; --count) {
      v0_ += v1_;
      v2_ += v3_;
      v1_ = std::rotl(v1_, 13) ^ v0_;
      v3_ = std::rotl(v3_, 16) ^ v2_;
      v0_ = std::rotl(v0_, 32);
      v2_ += v1_;
      v0_ += v3_;
      v1_ = std::rotl(v1_, 17) ^ v2_;
      v3_ = std::rotl(v3_, 21) ^ v0_;
      v2_ = std::rotl(v2_, 32);
    }
  }

  uint64_t v0_;
  uint64_t v1_;
  uint64_t v2_;
  uint64_t v3_;
};

}  // namespace

Hash128 SipHash128(const Hash128& key, std::span<const std::byte> bytes) {
  static_assert(std::endian::native == std::endian::little);
  State state(key);
  const size_t num_bytes = bytes.size();
  for (; bytes.size() >= sizeof(uint64_t); bytes = bytes.subspan(sizeof(uint64_t))) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof(word));
    state.Absorb(word);
  }
  uint64_t last = static_cast<uint64_t>(num_bytes) << 56;
  if (!bytes.empty()) {
    std::memcpy(&last, bytes.data(), bytes.size());
  }
  state.Absorb(last);
  return state.Finish();
}

}  // namespace quire
