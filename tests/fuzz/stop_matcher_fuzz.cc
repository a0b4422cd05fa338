// Feeds stop strings and pieces of text to the matcher and compares it with the definition. The
// first stop string to be complete matches, the longest of several. The matcher holds back only
// text that may still become one.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "scheduler/text/stop_matcher.h"
#include "scheduler/text/utf8.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

// The longest stop string that text ends with, the first of equally long ones; -1 if there is none.
int32_t MatchAtEnd(const std::vector<std::string>& stops, std::string_view text) {
  int32_t best = -1;
  for (size_t i = 0; i < stops.size(); ++i) {
    if (text.ends_with(stops[i]) &&
        (best < 0 || stops[i].size() > stops[static_cast<size_t>(best)].size())) {
      best = static_cast<int32_t>(i);
    }
  }
  return best;
}

// The length of the longest suffix of text that is a prefix of a stop string.
size_t NumHeld(const std::vector<std::string>& stops, std::string_view text) {
  size_t longest = 0;
  for (const std::string& stop : stops) {
    for (size_t length = 1; length < stop.size() && length <= text.size(); ++length) {
      if (text.ends_with(std::string_view(stop).substr(0, length))) {
        longest = std::max(longest, length);
      }
    }
  }
  return longest;
}

bool IsAllowed(const std::vector<std::string>& stops) {
  return stops.size() <= quire::kMaxStopStrings &&
         std::all_of(stops.begin(), stops.end(), [](const std::string& stop) {
           return !stop.empty() && stop.size() <= quire::kMaxStopStringBytes &&
                  quire::IsValidUtf8(stop);
         });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  quire::FuzzInput input(data, std::min(size, size_t{2048}));  // the definition is quadratic
  const uint8_t choice = input.TakeByte();
  const bool include_stop = (choice & 0x80) != 0;
  std::vector<std::string> stops(choice % 20);
  for (std::string& stop : stops) {
    const size_t num_bytes = input.TakeByte();
    stop = input.TakeBytes(num_bytes % 0x10 == 0xF ? num_bytes * 2 : num_bytes % 0x10);
  }
  auto matcher = quire::StopMatcher::Create(stops, include_stop);
  QUIRE_CHECK_EQ(matcher.ok(), IsAllowed(stops));
  if (!matcher.ok()) {
    return 0;
  }
  std::string pushed;
  std::string sent;
  while (!input.empty()) {
    const std::string_view piece = input.TakeBytes(input.TakeByte() % 8);
    int32_t match = -1;
    for (size_t i = 0; i < piece.size() && match < 0; ++i) {
      pushed += piece[i];
      match = MatchAtEnd(stops, pushed);
    }
    const quire::StopMatcher::Output output = matcher->Push(piece);
    sent += output.text;
    QUIRE_CHECK_EQ(output.matched, match >= 0);
    QUIRE_CHECK_EQ(matcher->matched_index(), match);
    if (match >= 0) {
      const size_t num_cut = include_stop ? 0 : stops[static_cast<size_t>(match)].size();
      QUIRE_CHECK(sent == pushed.substr(0, pushed.size() - num_cut));
      QUIRE_CHECK(matcher->Push("more").text.empty() && matcher->Flush().empty());
      return 0;
    }
    QUIRE_CHECK(sent == pushed.substr(0, pushed.size() - NumHeld(stops, pushed)));
  }
  QUIRE_CHECK(sent + matcher->Flush() == pushed);
  return 0;
}
