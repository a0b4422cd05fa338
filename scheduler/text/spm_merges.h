// SpmMerges finds the merges of a SentencePiece BPE vocabulary. SentencePiece merges the two
// neighbors whose joined text is the token of the highest score. So each split of a token into two
// tokens is a merge, and its rank follows from the score of the joined token. If scores are equal,
// the longer left part comes first, as in Hugging Face transformers.
//
// Thread safety: a free function, safe from any thread.
// Cost:          for each token its length squared; kMaxSpmWork bounds the sum.
// Source:        Kudo and Richardson 2018; generate_merges of transformers 5.
#ifndef QUIRE_SCHEDULER_TEXT_SPM_MERGES_H_
#define QUIRE_SCHEDULER_TEXT_SPM_MERGES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace quire {

// Upper bound on the sum of the tokens' squared lengths in bytes. Gemma's 262,144 tokens need
// 2^24.5; a hostile file could otherwise take minutes.
inline constexpr uint64_t kMaxSpmWork = uint64_t{1} << 30;
// Upper bound on the merges, of which Gemma has 580,604.
inline constexpr size_t kMaxSpmMerges = size_t{1} << 22;

struct SpmToken {
  std::string_view text;
  double score = 0;
};

struct SpmMerge {
  std::string_view left;
  std::string_view right;
};

// Returns the merges, the first one first. Returns nullopt if a bound is exceeded. `tokens`: the
// tokens that merges may use and make, without duplicates, in valid UTF-8.
std::optional<std::vector<SpmMerge>> SpmMerges(const std::vector<SpmToken>& tokens);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_SPM_MERGES_H_
