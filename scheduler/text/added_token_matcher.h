// AddedTokenMatcher cuts text at added tokens. It finds the leftmost match. If several tokens match
// there, it takes the longest one. The rules of the matched token (single_word, lstrip, rstrip)
// then apply.
//
// Thread safety: safe from any thread after the last Add.
// Cost:          O(bytes). Each byte of the text, and each byte compared with a token, spends one
//                step of the TextBudget. A byte that begins no token takes one table look-up.
#ifndef QUIRE_SCHEDULER_TEXT_ADDED_TOKEN_MATCHER_H_
#define QUIRE_SCHEDULER_TEXT_ADDED_TOKEN_MATCHER_H_

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

#include "common/base/byte_range.h"
#include "scheduler/text/text_budget.h"
#include "scheduler/text/vocabulary.h"

namespace quire {

// A stretch of the text: an added token, or text for the model (`added` is nullopt).
struct TextSection {
  std::string_view text;
  std::optional<TokenId> added;
};

class AddedTokenMatcher {
 public:
  // Adds `pattern`, the token's content or its normalized form. Returns false, and changes nothing,
  // if the pattern is empty or was added before.
  [[nodiscard]] bool Add(std::string_view pattern, const AddedToken& token);

  bool has_special() const { return has_special_; }

  // Appends the sections of text, none of them empty. The text of a special token stays plain text
  // if one of its bytes is in plain_ranges. The white space that lstrip and rstrip take may lie in
  // plain_ranges.
  // Errors: those of the budget.
  absl::Status Split(std::string_view text,
                     std::span<const ByteRange> plain_ranges,
                     TextBudget* budget,
                     std::vector<TextSection>* sections) const;

 private:
  struct Rules {
    TokenId id;
    bool single_word;
    bool lstrip;
    bool rstrip;
    bool special;
  };
  struct Match {
    size_t end;
    const Rules* rules;  // null: the bytes up to end are plain text
  };

  // Returns the longest token that begins at `start`. `plain` is the first range of plain text that
  // ends after `start`. If the longest token is special and lies in `plain`, returns a Match
  // without rules. If the longest token is special and only overlaps `plain`, returns the longest
  // token that is not special or that ends before `plain`. Increases *num_steps by the number of
  // compared bytes.
  std::optional<Match> LongestAt(std::string_view text,
                                 size_t start,
                                 ByteRange plain,
                                 size_t* num_steps) const;

  // A trie: (node, byte) -> node. Node 0 is the root.
  absl::flat_hash_map<uint64_t, uint32_t> edges_;
  // For each node, an index into rules_; -1: no token ends at the node.
  std::vector<int32_t> rule_index_ = {-1};
  std::vector<Rules> rules_;
  std::bitset<256> first_bytes_;
  bool has_special_ = false;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_ADDED_TOKEN_MATCHER_H_
