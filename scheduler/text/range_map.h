// MapRanges finds where ranges of a text are after a rewrite, such as a step of the normalizer.
//
// Thread safety: free functions, safe from any thread.
// Cost:          O(edits + ranges).
#ifndef QUIRE_SCHEDULER_TEXT_RANGE_MAP_H_
#define QUIRE_SCHEDULER_TEXT_RANGE_MAP_H_

#include <cstddef>
#include <span>
#include <vector>

#include "common/base/byte_range.h"

namespace quire {

// One edit: text[begin, end) was replaced by new_size bytes.
struct TextEdit {
  size_t begin;
  size_t end;
  size_t new_size;
};

// Returns where the ranges lie in the new text. If an edit replaces a byte of a range, all new
// bytes of the edit are in the range. Ranges that then touch are joined. REQUIRES: edits and ranges
// are in order and do not overlap.
std::vector<ByteRange> MapRanges(std::span<const TextEdit> edits,
                                 std::span<const ByteRange> ranges);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_RANGE_MAP_H_
