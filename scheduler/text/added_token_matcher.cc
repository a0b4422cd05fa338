#include "scheduler/text/added_token_matcher.h"

#include <algorithm>
#include <utility>

#include "scheduler/text/unicode.h"
#include "scheduler/text/utf8.h"

namespace quire {
namespace {

uint64_t EdgeKey(uint32_t node, char byte) {
  return uint64_t{node} << 8 | static_cast<uint8_t>(byte);
}

// Returns the start of the last character of text[0, end). REQUIRES: end > 0.
size_t PreviousCharacter(std::string_view text, size_t end) {
  size_t start = end - 1;
  while ((static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) {
    --start;
  }
  return start;
}

bool IsWholeWord(std::string_view text, size_t start, size_t end) {
  if (start > 0) {
    size_t before = PreviousCharacter(text, start);
    if (IsWordCharacter(DecodeValidUtf8(text, &before))) {
      return false;
    }
  }
  return end == text.size() || !IsWordCharacter(DecodeValidUtf8(text, &end));
}

// Returns the start of the white space that ends at `end`, but at least `floor`.
size_t SkipSpaceLeft(std::string_view text, size_t end, size_t floor) {
  while (end > floor) {
    size_t start = PreviousCharacter(text, end);
    size_t position = start;
    if (!IsWhiteSpace(DecodeValidUtf8(text, &position))) {
      break;
    }
    end = start;
  }
  return end;
}

// Finds ends of white space in one text, from left to right. Each run of white space is read once,
// even if many tokens match inside the run.
class SpaceReader {
 public:
  explicit SpaceReader(std::string_view text) : text_(text) {}

  // Returns the end of the white space that begins at `start`. Adds the number of bytes read to
  // *num_steps.
  // REQUIRES: a character begins at start.
  size_t SkipRight(size_t start, size_t* num_steps) {
    if (start >= end_) {
      end_ = start;
      while (end_ < text_.size()) {
        size_t next = end_;
        if (!IsWhiteSpace(DecodeValidUtf8(text_, &next))) {
          break;
        }
        end_ = next;
      }
      *num_steps += end_ - start;
    }
    return end_;
  }

 private:
  std::string_view text_;
  size_t end_ = 0;  // end of the run that was read last
};

}  // namespace

bool AddedTokenMatcher::Add(std::string_view pattern, const AddedToken& token) {
  if (pattern.empty()) {
    return false;
  }
  uint32_t node = 0;
  for (char byte : pattern) {
    auto [it, inserted] =
        edges_.try_emplace(EdgeKey(node, byte), static_cast<uint32_t>(rule_index_.size()));
    if (inserted) {
      rule_index_.push_back(-1);
    }
    node = it->second;
  }
  if (rule_index_[node] >= 0) {
    return false;
  }
  rule_index_[node] = static_cast<int32_t>(rules_.size());
  rules_.push_back({.id = token.id,
                    .single_word = token.single_word,
                    .lstrip = token.lstrip,
                    .rstrip = token.rstrip,
                    .special = token.special});
  has_special_ = has_special_ || token.special;
  first_bytes_.set(static_cast<uint8_t>(pattern[0]));
  return true;
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::LongestAt(std::string_view text,
                                                                     size_t start,
                                                                     ByteRange plain,
                                                                     size_t* num_steps) const {
  std::optional<Match> longest;  // longest match
  std::optional<Match> counted;  // longest match that is not special or ends before `plain`
  uint32_t node = 0;
  for (size_t i = start; i < text.size(); ++i) {
    ++*num_steps;
    auto it = edges_.find(EdgeKey(node, text[i]));
    if (it == edges_.end()) {
      break;
    }
    node = it->second;
    if (rule_index_[node] >= 0) {
      longest = Match{i + 1, &rules_[static_cast<size_t>(rule_index_[node])]};
      if (!longest->rules->special || longest->end <= plain.begin) {
        counted = longest;
      }
    }
  }
  // If a special token lies in the plain range, all its bytes are skipped: as in Hugging Face, no
  // other token is found in them. If a special token crosses the range's end, its bytes are not
  // skipped: they could hide a special token that begins after the end.
  const bool is_plain = longest.has_value() && longest->rules->special && start >= plain.begin &&
                        longest->end <= plain.end;
  return is_plain ? Match{longest->end, nullptr} : counted;
}

absl::Status AddedTokenMatcher::Split(std::string_view text,
                                      std::span<const ByteRange> plain_ranges,
                                      TextBudget* budget,
                                      std::vector<TextSection>* sections) const {
  SpaceReader spaces(text);
  size_t num_steps = text.size();
  size_t done = 0;                    // text before this offset is in a section
  size_t position = 0;                // the next match begins here or later
  auto plain = plain_ranges.begin();  // the first range that ends after position
  while (position < text.size()) {
    if (!first_bytes_.test(static_cast<uint8_t>(text[position]))) {
      ++position;
      continue;
    }
    if (!budget->Spend(std::exchange(num_steps, 0))) {
      return budget->status();
    }
    while (plain != plain_ranges.end() && plain->end <= position) {
      ++plain;
    }
    constexpr ByteRange kNone = {std::string_view::npos, std::string_view::npos};
    std::optional<Match> match =
        LongestAt(text, position, plain != plain_ranges.end() ? *plain : kNone, &num_steps);
    if (!match.has_value()) {
      ++position;
      continue;
    }
    size_t start = position;
    size_t end = match->end;
    position = end;
    if (match->rules == nullptr) {
      continue;
    }
    const Rules& rules = *match->rules;
    if (rules.single_word && !IsWholeWord(text, start, end)) {
      continue;
    }
    if (rules.lstrip) {
      start = SkipSpaceLeft(text, start, std::min(start, done));
    }
    if (rules.rstrip) {
      end = spaces.SkipRight(end, &num_steps);
    }
    if (done < start) {
      sections->push_back({text.substr(done, start - done), std::nullopt});
    }
    sections->push_back({text.substr(start, end - start), rules.id});
    done = end;
  }
  if (done < text.size()) {
    sections->push_back({text.substr(done), std::nullopt});
  }
  return budget->Spend(num_steps) ? absl::OkStatus() : budget->status();
}

}  // namespace quire
