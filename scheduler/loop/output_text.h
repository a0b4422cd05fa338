// OutputText turns the tokens of one sequence into text, one by one, and looks for stop strings. A
// token's text depends only on the prompt and the tokens up to it, so pushing the same tokens again
// gives the same bytes.
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
  // An object that makes no text: Push and Flush return empty strings.
  OutputText() = default;

  // prompt: see Detokenizer. A stop string that ends in the text of the first min_tokens tokens
  // does not count. REQUIRES: tokenizer outlives this object.
  OutputText(const Tokenizer* tokenizer,
             std::span<const TokenId> prompt,
             bool skip_special_tokens,
             std::optional<StopMatcher> stop_matcher,
             int32_t min_tokens);

  // Returns the text to send now. Holds back text that can be the beginning of a character or of a
  // stop string.
  std::string Push(TokenId token_id);

  // Returns the held-back text; empty after a stop string. Call once, after the last token.
  std::string Flush();

  // Index of the stop string that ended the text; -1 without one.
  int32_t stop_index() const { return stop_matcher_ ? stop_matcher_->matched_index() : -1; }
  bool has_stopped() const { return stop_index() >= 0; }

 private:
  // Feeds `text` to the stop matcher. Returns the text to send now.
  std::string Match(std::string text);

  std::optional<Detokenizer> detokenizer_;
  std::optional<StopMatcher> stop_matcher_;
  int32_t min_tokens_ = 0;
  int32_t num_tokens_ = 0;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_OUTPUT_TEXT_H_
