#include "scheduler/text/spm_merges.h"

#include <algorithm>
#include <tuple>

#include "absl/container/flat_hash_set.h"

#include "common/base/string_view.h"
#include "scheduler/text/utf8.h"

namespace quire {
namespace {

struct RankedMerge {
  SpmMerge merge;
  double score = 0;
  size_t left_characters = 0;
  size_t right_characters = 0;
};

bool ComesBefore(const RankedMerge& a, const RankedMerge& b) {
  return std::tie(a.score, a.left_characters, a.right_characters) >
         std::tie(b.score, b.left_characters, b.right_characters);
}

size_t NumCharacters(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

std::optional<std::vector<SpmMerge>> SpmMerges(const std::vector<SpmToken>& tokens) {
  uint64_t work = 0;
  absl::flat_hash_set<std::string_view> texts;
  texts.reserve(tokens.size());
  for (const SpmToken& token : tokens) {
    work += uint64_t{token.text.size()} * token.text.size();
    if (work > kMaxSpmWork) {
      return std::nullopt;
    }
    texts.insert(token.text);
  }
  std::vector<RankedMerge> ranked;
  for (const SpmToken& token : tokens) {
    size_t cut = 0;
    while (cut < token.text.size()) {
      DecodeValidUtf8(token.text, &cut);
      const std::string_view left = token.text.substr(0, cut);
      const std::string_view right = token.text.substr(cut);
      if (!texts.contains(left) || !texts.contains(right)) {
        continue;
      }
      if (ranked.size() == kMaxSpmMerges) {
        return std::nullopt;
      }
      ranked.push_back({.merge = {.left = left, .right = right},
                        .score = token.score,
                        .left_characters = NumCharacters(left),
                        .right_characters = NumCharacters(right)});
    }
  }
  // A stable sort keeps merges that compare equal in the order of `tokens`.
  std::stable_sort(ranked.begin(), ranked.end(), ComesBefore);
  std::vector<SpmMerge> merges;
  merges.reserve(ranked.size());
  for (const RankedMerge& each : ranked) {
    merges.push_back(each.merge);
  }
  return merges;
}

}  // namespace quire
