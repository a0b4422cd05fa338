// Pattern is a regular expression of the operator's tokenizer.json, run by PCRE2 with Unicode
// properties. Hugging Face runs Oniguruma, whose syntax differs in places. A pattern that uses such
// syntax is refused rather than matched differently.
//
// Thread safety: immutable after Compile; safe from any thread.
// Cost:          one step of the TextBudget for each try of an item, and for each character that an
//                item reads. An item is a part of the pattern that PCRE2 tries as a whole, such as
//                a literal or a class. The callback before each try takes about 10 ns. PCRE2's own
//                match limit does not suffice: it bounds only a single match, and does not count
//                characters.
#ifndef QUIRE_SCHEDULER_TEXT_PATTERN_H_
#define QUIRE_SCHEDULER_TEXT_PATTERN_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "scheduler/text/text_budget.h"

namespace quire {

// A stretch of text, as byte offsets: a match of a splitter, or text between matches.
struct TextSpan {
  size_t begin;
  size_t end;
  bool is_match;
};

// Upper bound on a literal's length. A search makes at most this many comparisons at each byte of
// the text.
inline constexpr size_t kMaxLiteralBytes = 256;

// Appends spans that cover text in order; every occurrence of literal is a match. REQUIRES: literal
// is not empty.
void FindLiteral(std::string_view literal, std::string_view text, std::vector<TextSpan>* spans);

class Pattern {
 public:
  // Errors: kInvalidArgument with reason TOKENIZER if the pattern
  //   - does not compile, can match the empty string, or has another meaning in Oniguruma;
  //   - has an item that can read more than 256 characters before the next item is tried (because
  //     of a count, or of a reference to a group);
  //   - has a group that captures or is called. Plain groups, (...), do not capture here.
  static absl::StatusOr<Pattern> Compile(const std::string& pattern);

  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

  // Appends spans that cover text in order. REQUIRES: text is valid UTF-8.
  // Errors: the errors of the budget; kInvalidArgument TOKENIZE_BUDGET if a limit of PCRE2 is
  // reached; kResourceExhausted TOKENIZE_MEMORY.
  absl::Status FindAll(std::string_view text,
                       TextBudget* budget,
                       std::vector<TextSpan>* spans) const;

 private:
  struct Code;
  explicit Pattern(std::unique_ptr<const Code> code);

  std::unique_ptr<const Code> code_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_PATTERN_H_
