// PreTokenizer cuts normalized text into pieces, because BpeModel merges symbols (characters or
// bytes) only within a piece. It implements the `pre_tokenizer` of tokenizer.json. Supported:
// Split, Digits, Metaspace, Whitespace, WhitespaceSplit, ByteLevel (only as the last step), and a
// Sequence of these.
//
// Thread safety: immutable after Parse; safe from any thread.
// Cost:          O(bytes), except that a Split with a Pattern costs as much as Pattern::FindAll.
//                All steps spend the text's budget.
#ifndef QUIRE_SCHEDULER_TEXT_PRE_TOKENIZER_H_
#define QUIRE_SCHEDULER_TEXT_PRE_TOKENIZER_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "scheduler/text/json_node.h"
#include "scheduler/text/pattern.h"
#include "scheduler/text/word_splitter.h"

namespace quire {

// The pieces of one text, as spans of `text`. `text` is a view of the text given to Split, or of
// `buffer` if a step rewrote the text. Reuse one object for many texts to save allocations.
struct PieceList {
  std::vector<TextSpan> spans;
  std::string_view text;
  std::string buffer;
  std::vector<TextSpan> scratch_matches;
  std::vector<TextSpan> scratch_spans;

  std::string_view Piece(const TextSpan& span) const {
    return text.substr(span.begin, span.end - span.begin);
  }
};

class PreTokenizer {
 public:
  // node: the value of the key "pre_tokenizer". If node is null, the whole text is one piece.
  static absl::StatusOr<PreTokenizer> Parse(const JsonNode& node);

  // True if the model reads a piece as bytes (in the byte-level alphabet), false if as characters.
  bool is_byte_level() const { return is_byte_level_; }

  // Fills *pieces. at_text_start: true if `text` is the front of the whole text to encode.
  // REQUIRES: text is valid UTF-8 and outlives *pieces.
  // Errors: as for Pattern::FindAll.
  absl::Status Split(std::string_view text,
                     bool at_text_start,
                     TextBudget* budget,
                     PieceList* pieces) const;

 private:
  enum class Behavior { kIsolated, kRemoved, kContiguous, kMergedWithPrevious, kMergedWithNext };
  enum class CharSet { kNumber, kWhiteSpace };
  struct Literal {
    std::string text;
  };
  // Matches runs of word characters, and runs of other characters that are not spaces.
  struct WordsAndSymbols {};
  using Matcher = std::variant<WordSplitter, Pattern, Literal, CharSet, WordsAndSymbols>;
  struct SplitStep {
    Matcher matcher;
    Behavior behavior;
    bool invert;
  };
  // Puts a prefix in front of pieces, and replaces spaces by the prefix if replace_spaces is true.
  struct PrefixStep {
    enum class When { kAlways, kFirst, kNever };
    std::string prefix;
    bool replace_spaces;
    When when;  // which pieces get the prefix, unless they begin with it
  };
  using Step = std::variant<SplitStep, PrefixStep>;

  absl::Status AddLeaf(const JsonNode& node);
  absl::Status AddByteLevel(const JsonNode& node);
  absl::Status AddMetaspace(const JsonNode& node);
  absl::Status AddSplit(const JsonNode& node);
  static absl::StatusOr<Behavior> ParseBehavior(const JsonNode& node);
  static absl::StatusOr<Matcher> ParseMatcher(const JsonNode& node);

  static absl::Status Run(const SplitStep& step, TextBudget* budget, PieceList* pieces);
  static absl::Status Run(const PrefixStep& step,
                          bool at_text_start,
                          TextBudget* budget,
                          PieceList* pieces);
  static absl::Status FindMatches(const Matcher& matcher,
                                  std::string_view text,
                                  TextBudget* budget,
                                  std::vector<TextSpan>* matches);
  static void Combine(Behavior behavior,
                      const std::vector<TextSpan>& matches,
                      size_t offset,
                      std::vector<TextSpan>* spans);

  std::vector<Step> steps_;
  bool is_byte_level_ = false;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_PRE_TOKENIZER_H_
