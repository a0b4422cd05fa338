// Normalizer rewrites text before the text is cut into pieces: the `normalizer` of tokenizer.json.
// Supported: NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace, and a Sequence of these.
//
// Thread safety: immutable after Parse; safe from any thread.
// Cost:          each step is O(n log n) in bytes, and spends the text's budget.
#ifndef QUIRE_SCHEDULER_TEXT_NORMALIZER_H_
#define QUIRE_SCHEDULER_TEXT_NORMALIZER_H_

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/byte_range.h"
#include "scheduler/text/json_node.h"
#include "scheduler/text/pattern.h"
#include "scheduler/text/unicode.h"

namespace quire {

class Normalizer {
 public:
  // node: the value of the key "normalizer"; null means none.
  static absl::StatusOr<Normalizer> Parse(const JsonNode& node);

  bool empty() const { return steps_.empty(); }

  // Rewrites *text. If `ranges` is not null, moves each range to where its characters are in the
  // new text. A character made of several old characters is in a range if one of them was.
  // REQUIRES: *text is valid UTF-8. The new text is valid UTF-8, too.
  // Errors: the errors of Pattern::FindAll; the errors of the budget.
  absl::Status Apply(TextBudget* budget, std::string* text, std::vector<ByteRange>* ranges) const;

 private:
  struct Strip {
    bool left;
    bool right;
  };
  struct Lowercase {};
  struct Prepend {
    std::string prefix;
  };
  struct ReplaceLiteral {
    std::string from;
    std::string to;
  };
  struct ReplacePattern {
    Pattern from;
    std::string to;
  };
  using Step =
      std::variant<NormalizationForm, Lowercase, Strip, Prepend, ReplaceLiteral, ReplacePattern>;

  static absl::StatusOr<Step> ParseStep(const JsonNode& node);
  static absl::StatusOr<Step> ParseReplace(const JsonNode& node);
  static absl::Status ApplyStep(const Step& step,
                                TextBudget* budget,
                                std::string* text,
                                std::vector<ByteRange>* ranges);

  std::vector<Step> steps_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_NORMALIZER_H_
