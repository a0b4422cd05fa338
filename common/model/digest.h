// Digest hashes values to 64 bits that are the same on every machine and in every build: FNV-1a
// over little-endian bytes, then a finalizer that mixes the bits. A digest finds accidental
// differences between files or configurations; it is no defense against forgery.
//
// Thread safety: one caller at a time.
// Source:        Fowler, Noll, Vo, RFC draft-eastlake-fnv; finalizer of splitmix64.
#ifndef QUIRE_COMMON_MODEL_DIGEST_H_
#define QUIRE_COMMON_MODEL_DIGEST_H_

#include <bit>
#include <cstdint>
#include <string_view>

namespace quire {

class Digest {
 public:
  void AddInt(uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) {
      AddByte(static_cast<uint8_t>(value >> (8 * byte)));
    }
  }
  void AddInt(int64_t value) { AddInt(static_cast<uint64_t>(value)); }
  void AddDouble(double value) { AddInt(std::bit_cast<uint64_t>(value)); }

  // The length is added first, so that "ab" + "c" and "a" + "bc" differ.
  void AddBytes(std::string_view bytes) {
    AddInt(uint64_t{bytes.size()});
    for (char byte : bytes) {
      AddByte(static_cast<uint8_t>(byte));
    }
  }

  uint64_t value() const {
    uint64_t x = state_;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
    return x ^ (x >> 31);
  }

 private:
  void AddByte(uint8_t byte) { state_ = (state_ ^ byte) * 0x100000001B3U; }

  uint64_t state_ = 0xCBF29CE484222325U;
};

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_DIGEST_H_
