// ByteRange is the part [begin, end) of a text, in bytes. In a list of ranges, the ranges are in
// order, none is empty, and no two overlap or touch.
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
