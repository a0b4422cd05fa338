// ByteRange is the part [begin, end) of a text, in bytes. A list of ranges is in order, and its
// ranges are neither empty, nor do they overlap or touch.
//
// Thread safety: plain data.
#ifndef QUIRE_COMMON_BASE_BYTE_RANGE_H_
#define QUIRE_COMMON_BASE_BYTE_RANGE_H_

#include <cstddef>

namespace quire {

struct ByteRange {
  size_t begin = 0;
  size_t end = 0;

  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_BYTE_RANGE_H_
