// SpmMerges derives BPE merges from the scores of a SentencePiece vocabulary. SentencePiece merges
// the two neighbors whose joined text is the token with the highest score. So each split of a token
// into two tokens is a merge, ranked by the score of the joined token. If scores are equal, the
// merge with the longer left part comes first, as in Hugging Face transformers.
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

// Upper bound on the sum of the tokens' squared lengths in bytes. Without it a hostile file could
// take minutes. Gemma's 262,144 tokens need 2^24.5.
inline constexpr uint64_t kMaxSpmWork = uint64_t{1} << 30;
// Upper bound on the number of merges. Gemma has 580,604.
inline constexpr size_t kMaxSpmMerges = size_t{1} << 22;

struct SpmToken {
  std::string_view text;
  double score = 0;
};

struct SpmMerge {
  std::string_view left;
  std::string_view right;
};

// Returns the merges in order of their rank, the highest score first. Returns nullopt if
// kMaxSpmWork or kMaxSpmMerges is exceeded. `tokens`: the tokens that merges may use and make.
// REQUIRES: tokens are valid UTF-8, without duplicates.
std::optional<std::vector<SpmMerge>> SpmMerges(const std::vector<SpmToken>& tokens);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_SPM_MERGES_H_
