// LetterTokenizer is a tokenizer small enough to know by heart, for tests of the code around it:
// one token per byte, no merges.
//
//   'a' .. 'z'  0 .. 25      ' '  26      the two bytes of "é"  27, 28      "<s>" (special)  29
//
// Ids from 30 on have no token.
//
// Thread safety: free functions.
#ifndef QUIRE_TESTS_SCHEDULER_LOOP_LETTER_TOKENIZER_H_
#define QUIRE_TESTS_SCHEDULER_LOOP_LETTER_TOKENIZER_H_

#include <memory>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "scheduler/text/tokenizer.h"

namespace quire {

inline constexpr TokenId kSpaceId = 26;
inline constexpr TokenId kFirstByteOfE = 27;
inline constexpr TokenId kSecondByteOfE = 28;
inline constexpr TokenId kSpecialId = 29;
inline constexpr int32_t kLetterVocabSize = 30;

std::unique_ptr<Tokenizer> MakeLetterTokenizer();

// The ids of lower-case letters and spaces.
std::vector<TokenId> Letters(std::string_view text);

}  // namespace quire

#endif  // QUIRE_TESTS_SCHEDULER_LOOP_LETTER_TOKENIZER_H_
