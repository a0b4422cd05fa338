// OutputText makes the text of one sequence from its tokens as they come, and looks for stop
// strings on the way. What a token brings depends on the tokens up to it and on nothing else, so
// whoever pushes the same tokens again stands at the same byte.
//
// Thread safety: not thread-safe; one per sequence. Copyable.
// Cost:          O(bytes of text).
#ifndef QUIRE_SCHEDULER_LOOP_OUTPUT_TEXT_H_
#define QUIRE_SCHEDULER_LOOP_OUTPUT_TEXT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "common/base/ids.h"
#include "scheduler/text/detokenizer.h"
#include "scheduler/text/stop_matcher.h"
#include "scheduler/text/tokenizer.h"

namespace quire {

class OutputText {
 public:
  // Makes no text.
  OutputText() = default;

  // prompt: see Detokenizer. REQUIRES: tokenizer outlives this object.
  OutputText(const Tokenizer* tokenizer,
             std::span<const TokenId> prompt,
             bool skip_special_tokens,
             std::optional<StopMatcher> stop_matcher);

  // The text to send with this token. What may begin a character or a stop string is held back.
  std::string Push(TokenId token_id);

  // The end, unless a stop string brought it: what was held back. Call once, after the last token.
  std::string Flush();

  // Index of the stop string that ended the text; -1 without one.
  int32_t stop_index() const { return stop_matcher_ ? stop_matcher_->matched_index() : -1; }
  bool has_stopped() const { return stop_index() >= 0; }

 private:
  std::optional<Detokenizer> detokenizer_;
  std::optional<StopMatcher> stop_matcher_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_OUTPUT_TEXT_H_
