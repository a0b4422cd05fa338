// FuzzInput reads the bytes of one execution from the front: small numbers first, the rest as text.
// It never runs out: past the end are zeros and empty strings.
//
// Thread safety: not thread-safe; a view of bytes that must outlive it.
#ifndef QUIRE_TESTS_FUZZ_FUZZ_INPUT_H_
#define QUIRE_TESTS_FUZZ_FUZZ_INPUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace quire {

class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return rest_.empty(); }
  uint8_t TakeByte() {
    const std::string_view byte = TakeBytes(1);
    return byte.empty() ? uint8_t{0} : static_cast<uint8_t>(byte[0]);
  }
  std::string_view TakeBytes(size_t max_bytes) {
    const std::string_view taken = rest_.substr(0, std::min(max_bytes, rest_.size()));
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view TakeRest() { return std::exchange(rest_, {}); }

 private:
  std::string_view rest_;
};

}  // namespace quire

#endif  // QUIRE_TESTS_FUZZ_FUZZ_INPUT_H_
