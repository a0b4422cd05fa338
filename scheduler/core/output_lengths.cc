#include "scheduler/core/output_lengths.h"

#include <algorithm>
#include <bit>

namespace quire {

void OutputLengths::OnEnd(int32_t num_tokens, int32_t max_tokens, bool is_whole) {
  classes_.at(ClassOf(max_tokens)).Add(num_tokens, is_whole);
  any_.Add(num_tokens, is_whole);
}

bool OutputLengths::is_known() const { return any_.quartile > 0; }

int32_t OutputLengths::Expect(int32_t max_tokens) const {
  const size_t own = ClassOf(max_tokens);
  for (size_t i = own; i < kNumClasses; ++i) {
    if (classes_.at(i).quartile > 0) {
      return std::min(max_tokens, classes_.at(i).quartile);
    }
  }
  for (size_t i = own; i > 0; --i) {
    if (classes_.at(i - 1).quartile > 0) {
      return classes_.at(i - 1).quartile;
    }
  }
  return 0;
}

size_t OutputLengths::ClassOf(int32_t max_tokens) {
  return static_cast<size_t>(std::bit_width(static_cast<uint32_t>(std::max(max_tokens, 1)))) - 1;
}

void OutputLengths::Window::Add(int32_t num_tokens, bool is_whole) {
  if (num_tokens < 1 || (!is_whole && num_tokens < quartile)) {
    return;
  }
  lengths.at(num_lengths++ % kNumLengths) = num_tokens;
  const size_t num_known = std::min(num_lengths, kNumLengths);
  if (num_known < kFewestLengths) {
    return;
  }
  std::array<int32_t, kNumLengths> sorted = lengths;
  const auto quarter = static_cast<std::ptrdiff_t>(num_known / 4);
  std::nth_element(sorted.begin(),
                   sorted.begin() + quarter,
                   sorted.begin() + static_cast<std::ptrdiff_t>(num_known));
  quartile = sorted.at(num_known / 4);
}

}  // namespace quire
