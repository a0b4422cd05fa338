// StopMatcher finds the first stop string in streamed text. It holds back text that may begin a
// stop string, so that a client never sees part of a stop string. The result does not depend on how
// the text is cut into pieces.
//
// The match that ends first counts. If several matches end at the same byte, the longest of them
// counts. With stops {"bc", "abcd"} the text "abcd" stops at "bc".
//
// Thread safety: not thread-safe; one per sequence. Copyable, for forks. Copies share the immutable
//                automaton.
// Invariants:    before a match, text returned + text held back = text pushed. A match returns all
//                text before the stop string, and also the stop string if include_stop_in_output.
//                If the text pushed ends at a character boundary, so does the text returned.
// Cost:          O(bytes pushed), whatever the number of stop strings. Memory: 3 bytes for each
//                byte of the stop strings, plus less than 1 KiB, plus the text held back (at most
//                kMaxStopStringBytes).
// Source:        Aho and Corasick 1975.
#ifndef QUIRE_SCHEDULER_TEXT_STOP_MATCHER_H_
#define QUIRE_SCHEDULER_TEXT_STOP_MATCHER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quire {

inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopStringBytes = 256;

class StopAutomaton;

class StopMatcher {
 public:
  // If stop_strings is empty, the matcher passes all text through.
  // Errors: kInvalidArgument, reason STOP_LIMIT: there are too many strings, or a string is empty,
  // too long or not UTF-8.
  static absl::StatusOr<StopMatcher> Create(const std::vector<std::string>& stop_strings,
                                            bool include_stop_in_output);

  struct Output {
    std::string text;      // text to send now
    bool matched = false;  // the sequence ends here; later text is dropped
  };

  // Takes the next text. After a match, every call returns {"", true}. If may_match is false, a
  // stop string that ends in this text does not count, but a stop string that begins in this text
  // can match later.
  Output Push(std::string_view text, bool may_match = true);

  // Ends the text. Returns the text held back, or "" after a match.
  std::string Flush();

  bool matched() const { return matched_index_ >= 0; }
  // Index of the matched string in stop_strings; -1 if none has matched.
  int32_t matched_index() const { return matched_index_; }

 private:
  StopMatcher(std::shared_ptr<const StopAutomaton> automaton, bool include_stop_in_output);

  std::shared_ptr<const StopAutomaton> automaton_;
  bool include_stop_in_output_;
  int32_t state_ = 0;
  int32_t matched_index_ = -1;
  std::string held_;  // text held back: the prefix that state_ stands for
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_STOP_MATCHER_H_
