// WordSplitter cuts text into words as the patterns of GPT-2, Llama 3, Qwen2 and BLOOM do, without
// a regular-expression engine. It takes one pass and never backtracks, so that no text is slow.
//
// The patterns, by their exact text:
//   GPT-2    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   Llama 3  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
//            ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//   Qwen2    Llama 3's pattern with \p{N} in place of \p{N}{1,3}
// Each of these three patterns matches at every position, so the words cover the text.
//   BLOOM     ?[^(\s|[.,!?…。，、।۔،])]+
// BLOOM's pattern does not match runs of white space and punctuation. In Oniguruma the inner
// brackets open a nested class. So the characters '(', '|' and ')' separate words too, but '[' and
// ']' do not.
//
// Thread safety: a value without state; safe from any thread.
// Cost:          O(bytes).
#ifndef QUIRE_SCHEDULER_TEXT_WORD_SPLITTER_H_
#define QUIRE_SCHEDULER_TEXT_WORD_SPLITTER_H_

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "scheduler/text/pattern.h"

namespace quire {

class WordSplitter {
 public:
  // Returns nullopt unless `pattern` is one of the four patterns at the top of this file.
  static std::optional<WordSplitter> ForPattern(std::string_view pattern);
  static WordSplitter Gpt2();

  // Appends the words of text as matches, and the text between words as other spans. REQUIRES: text
  // is valid UTF-8.
  void FindAll(std::string_view text, std::vector<TextSpan>* spans) const;

 private:
  enum class Style { kGpt2, kLlama3, kQwen2, kBloom };

  explicit WordSplitter(Style style) : style_(style) {}

  Style style_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_WORD_SPLITTER_H_
