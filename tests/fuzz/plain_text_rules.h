// UTF-8, byte pair encoding and the text of tokens, written down from their definitions.
// encode_fuzz.cc and detokenizer_fuzz.cc compare the product with these slow, short versions.
//
// Thread safety: not thread-safe.
#ifndef QUIRE_TESTS_FUZZ_PLAIN_TEXT_RULES_H_
#define QUIRE_TESTS_FUZZ_PLAIN_TEXT_RULES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"

#include "common/base/check.h"
#include "common/json/json.h"
#include "scheduler/text/tokenizer.h"

namespace quire {

// Bytes of the character that text begins with; 0 if it does not begin with one.
inline size_t CharacterBytes(std::string_view text) {
  constexpr char32_t kFirstOfLength[] = {0, 0, 0x80, 0x800, 0x10000};
  const auto lead = static_cast<uint8_t>(text[0]);
  const size_t length = lead < 0x80 ? 1 : lead < 0xC0 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (lead >= 0xF8 || length > text.size()) {
    return 0;
  }
  char32_t code_point = length == 1 ? lead : lead & (0x7FU >> length);
  for (size_t i = 1; i < length; ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if ((byte & 0xC0) != 0x80) {
      return 0;
    }
    code_point = code_point << 6 | (byte & 0x3FU);
  }
  const bool is_surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
  return code_point > 0x10FFFF || is_surrogate || code_point < kFirstOfLength[length] ? 0 : length;
}

inline bool IsPlainUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = CharacterBytes(text);
    if (length == 0) {
      return false;
    }
    text.remove_prefix(length);
  }
  return true;
}

// Whether the bytes are a character or a proper prefix of one.
inline bool BeginsCharacter(std::string_view bytes) {
  for (char second : {'\x80', '\xBF'}) {
    std::string longer(bytes);
    for (int i = 0; i < 4; ++i) {
      if (CharacterBytes(longer) == longer.size()) {
        return true;
      }
      longer += longer.size() == 1 ? second : '\x80';
    }
  }
  return false;
}

// The text with U+FFFD in place of invalid bytes. Each longest incomplete prefix of a character
// becomes one U+FFFD, or one for each of its bytes.
inline std::string PlainText(std::string_view bytes, bool for_each_byte) {
  std::string text;
  while (!bytes.empty()) {
    size_t length = CharacterBytes(bytes);
    if (length > 0) {
      text += bytes.substr(0, length);
    } else {
      length = 1;
      while (length < bytes.size() && BeginsCharacter(bytes.substr(0, length + 1))) {
        ++length;
      }
      for (size_t i = 0; i < (for_each_byte ? length : 1); ++i) {
        text += "\xEF\xBF\xBD";
      }
    }
    bytes.remove_prefix(length);
  }
  return text;
}

// Byte pair encoding for a file with two properties. Its only pre-tokenization writes each space,
// and one in front, as U+2581. A character without a token becomes tokens of its bytes.
//
// The pair with the lowest rank is merged first, the leftmost of several, until no pair is left to
// merge.
class PlainBpe {
 public:
  // REQUIRES: the tokenizer was made from the file, and it outlives this object.
  PlainBpe(const Json& file, const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
    for (const Json& merge : file["model"]["merges"]) {
      const std::string pair = merge.get<std::string>();
      const std::string left = pair.substr(0, pair.find(' '));
      const std::string right = pair.substr(left.size() + 1);
      const auto rank = static_cast<int>(merges_.size());
      merges_[{Id(left), Id(right)}] = {rank, Id(left + right)};
    }
  }

  // REQUIRES: text is UTF-8. Cost: quadratic.
  std::vector<TokenId> Encode(std::string_view text) const {
    std::vector<TokenId> ids;
    if (!text.empty()) {
      AppendCharacter(" ", &ids);
    }
    for (; !text.empty(); text.remove_prefix(CharacterBytes(text))) {
      AppendCharacter(text.substr(0, CharacterBytes(text)), &ids);
    }
    while (MergeFirst(&ids)) {
    }
    return ids;
  }

 private:
  using Pair = std::pair<TokenId, TokenId>;

  TokenId Id(const std::string& token) const {
    const auto id = tokenizer_.FindToken(token);
    QUIRE_CHECK(id.has_value());
    return *id;
  }

  void AppendCharacter(std::string_view character, std::vector<TokenId>* ids) const {
    const std::string token = character == " " ? "\xE2\x96\x81" : std::string(character);
    if (const auto id = tokenizer_.FindToken(token)) {
      ids->push_back(*id);
      return;
    }
    for (char byte : character) {
      ids->push_back(Id(absl::StrFormat("<0x%02X>", static_cast<uint8_t>(byte))));
    }
  }

  bool MergeFirst(std::vector<TokenId>* ids) const {
    auto best = merges_.end();
    size_t place = 0;
    for (size_t i = 0; i + 1 < ids->size(); ++i) {
      const auto merge = merges_.find({(*ids)[i], (*ids)[i + 1]});
      if (merge != merges_.end() &&
          (best == merges_.end() || merge->second.first < best->second.first)) {
        best = merge;
        place = i;
      }
    }
    if (best == merges_.end()) {
      return false;
    }
    (*ids)[place] = best->second.second;
    ids->erase(ids->begin() + static_cast<std::ptrdiff_t>(place) + 1);
    return true;
  }

  const Tokenizer& tokenizer_;
  std::map<Pair, std::pair<int, TokenId>> merges_;  // rank and token
};

}  // namespace quire

#endif  // QUIRE_TESTS_FUZZ_PLAIN_TEXT_RULES_H_
