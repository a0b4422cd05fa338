// ByteWriter encodes numbers and strings as bytes; ByteReader decodes them. Varint writes an
// unsigned integer as a LEB128 varint, and Zigzag a signed one. Fixed32 and Fixed64 are
// little-endian.
//
// Thread safety: not thread-safe.
// Errors:        if a read goes past the end or meets a varint of more than 64 bits, the reader
//                fails for good: it returns zeros from then on.
#ifndef QUIRE_SCHEDULER_STEP_LOG_BYTE_STREAM_H_
#define QUIRE_SCHEDULER_STEP_LOG_BYTE_STREAM_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "common/base/fold_hash.h"

namespace quire {

class ByteWriter {
 public:
  void Clear() { size_ = 0; }
  std::string_view bytes() const { return {buffer_.data(), size_}; }

  void Varint(uint64_t value) {
    char* out = Room(kMaxVarintBytes);
    for (; value >= 0x80; value >>= 7) {
      *out++ = static_cast<char>(value | 0x80);
    }
    *out++ = static_cast<char>(value);
    size_ = static_cast<size_t>(out - buffer_.data());
  }
  void Zigzag(int64_t value) {
    Varint((static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63));
  }
  void Fixed32(uint32_t value) { Fixed(value, 4); }
  void Fixed64(uint64_t value) { Fixed(value, 8); }
  void Raw(std::string_view bytes) {
    std::copy(bytes.begin(), bytes.end(), Room(bytes.size()));
    size_ += bytes.size();
  }

 private:
  static constexpr size_t kMaxVarintBytes = 10;

  // Returns the position for the next `more` bytes. Doubles a full buffer, so that the cost of
  // growing is amortized.
  char* Room(size_t more) {
    if (buffer_.size() - size_ < more) {
      buffer_.resize(2 * buffer_.size() + more);
    }
    return buffer_.data() + size_;
  }
  void Fixed(uint64_t value, size_t size) {
    char* out = Room(size);
    for (size_t i = 0; i < size; ++i) {
      out[i] = static_cast<char>(value >> (8 * i));
    }
    size_ += size;
  }

  std::vector<char> buffer_;  // the first size_ bytes hold data
  size_t size_ = 0;
};

// HashWriter has the writing methods of ByteWriter, but adds the values to a hash instead.
class HashWriter {
 public:
  void Varint(uint64_t value) { hash_.Add(value); }
  void Zigzag(int64_t value) { hash_.AddInt(value); }
  void Fixed32(uint32_t value) { hash_.Add(value); }
  void Fixed64(uint64_t value) { hash_.Add(value); }
  void Raw(std::string_view bytes) { hash_.AddBytes(bytes); }
  uint64_t value() const { return hash_.value(); }

 private:
  FoldHash hash_;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  bool ok() const { return ok_; }
  bool at_end() const { return rest_.empty(); }
  // Makes the reader fail. Callers use this if a decoded value is out of its type's range.
  void Fail() {
    ok_ = false;
    rest_ = {};
  }

  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint64_t byte = Fixed(1);
      value |= (byte & 0x7F) << shift;
      if (byte < 0x80) {
        if (shift == 63 && byte > 1) {
          break;
        }
        return value;
      }
    }
    Fail();
    return 0;
  }
  int64_t Zigzag() {
    const uint64_t value = Varint();
    return static_cast<int64_t>((value >> 1) ^ (~(value & 1) + 1));
  }
  uint32_t Fixed32() { return static_cast<uint32_t>(Fixed(4)); }
  uint64_t Fixed64() { return Fixed(8); }
  std::string_view Raw(uint64_t size) {
    if (size > rest_.size()) {
      Fail();
      return {};
    }
    const std::string_view bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return bytes;
  }

 private:
  uint64_t Fixed(size_t size) {
    const std::string_view bytes = Raw(size);
    uint64_t value = 0;
    for (size_t i = 0; i < bytes.size(); ++i) {
      value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
    }
    return value;
  }

  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_STEP_LOG_BYTE_STREAM_H_
