// Pattern is a regular expression of the operator's tokenizer.json, run by PCRE2 with Unicode
// properties. Hugging Face runs Oniguruma, whose language differs in places; a pattern that uses
// one of those places is refused rather than matched otherwise.
//
// Thread safety: immutable after Compile; safe from any thread.
// Cost:          FindAll is one pass; every match has a step limit, so that a pattern that
// backtracks
//                without end fails instead.
#ifndef QUIRE_SCHEDULER_TEXT_PATTERN_H_
#define QUIRE_SCHEDULER_TEXT_PATTERN_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quire {

// A stretch of text, in bytes, that a splitter matched or did not.
struct TextSpan {
  size_t begin;
  size_t end;
  bool is_match;
};

class Pattern {
 public:
  // Errors: kInvalidArgument with reason TOKENIZER when the pattern does not compile, may match the
  // empty string, or uses syntax that means another thing in Oniguruma.
  static absl::StatusOr<Pattern> Compile(const std::string& pattern);

  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

  // Appends spans that cover text in order. REQUIRES: text is valid UTF-8.
  // Errors: kInvalidArgument, reason TOKENIZE_BUDGET, when the step or memory limit is hit.
  absl::Status FindAll(std::string_view text, std::vector<TextSpan>* spans) const;

 private:
  struct Code;
  explicit Pattern(std::unique_ptr<const Code> code);

  std::unique_ptr<const Code> code_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_PATTERN_H_
