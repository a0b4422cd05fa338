#include "scheduler/text/added_token_matcher.h"

#include <algorithm>

#include "scheduler/text/unicode.h"
#include "scheduler/text/utf8.h"

namespace quire {
namespace {

uint64_t EdgeKey(uint32_t node, char byte) {
  return uint64_t{node} << 8 | static_cast<uint8_t>(byte);
}

// Where the last character of text[0, end) starts. REQUIRES: end > 0.
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

// The start of the white space that ends at `end`, not before `floor`.
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

size_t SkipSpaceRight(std::string_view text, size_t start) {
  while (start < text.size()) {
    size_t next = start;
    if (!IsWhiteSpace(DecodeValidUtf8(text, &next))) {
      break;
    }
    start = next;
  }
  return start;
}

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
  first_bytes_.set(static_cast<uint8_t>(pattern[0]));
  return true;
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::LongestAt(std::string_view text,
                                                                     size_t start) const {
  std::optional<Match> longest;
  uint32_t node = 0;
  for (size_t i = start; i < text.size(); ++i) {
    auto it = edges_.find(EdgeKey(node, text[i]));
    if (it == edges_.end()) {
      break;
    }
    node = it->second;
    if (rule_index_[node] >= 0) {
      longest = Match{i + 1, &rules_[static_cast<size_t>(rule_index_[node])]};
    }
  }
  return longest;
}

void AddedTokenMatcher::Split(std::string_view text,
                              bool match_special,
                              std::vector<TextSection>* sections) const {
  size_t done = 0;      // text before it is in a section
  size_t position = 0;  // where to look for the next match
  while (position < text.size()) {
    if (!first_bytes_.test(static_cast<uint8_t>(text[position]))) {
      ++position;
      continue;
    }
    std::optional<Match> match = LongestAt(text, position);
    if (!match.has_value()) {
      ++position;
      continue;
    }
    size_t start = position;
    size_t end = match->end;
    const Rules& rules = *match->rules;
    position = end;
    if ((rules.special && !match_special) ||
        (rules.single_word && !IsWholeWord(text, start, end))) {
      continue;
    }
    if (rules.lstrip) {
      start = SkipSpaceLeft(text, start, std::min(start, done));
    }
    if (rules.rstrip) {
      end = SkipSpaceRight(text, end);
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
}

}  // namespace quire
