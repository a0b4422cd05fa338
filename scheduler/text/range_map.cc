#include "scheduler/text/range_map.h"

#include <algorithm>

namespace quire {

std::vector<ByteRange> MapRanges(std::span<const TextEdit> edits,
                                 std::span<const ByteRange> ranges) {
  std::vector<ByteRange> mapped;
  size_t grown = 0;  // bytes added by edits before `edit`; wraps around if the text shrank
  auto edit = edits.begin();
  const auto skip_until = [&](size_t end) {
    for (; edit != edits.end() && edit->end <= end; ++edit) {
      grown += edit->new_size - (edit->end - edit->begin);
    }
  };
  for (const ByteRange& range : ranges) {
    skip_until(range.begin);
    const bool is_begin_edited = edit != edits.end() && edit->begin < range.begin;
    const size_t begin = (is_begin_edited ? edit->begin : range.begin) + grown;
    skip_until(range.end);
    const bool is_end_edited = edit != edits.end() && edit->begin < range.end;
    const size_t end = (is_end_edited ? edit->begin + edit->new_size : range.end) + grown;
    if (!mapped.empty() && begin <= mapped.back().end) {
      mapped.back().end = std::max(mapped.back().end, end);
    } else if (begin < end) {
      mapped.push_back({begin, end});
    }
  }
  return mapped;
}

}  // namespace quire
