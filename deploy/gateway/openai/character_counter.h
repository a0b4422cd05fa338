// CharacterCounter counts the characters of a text that comes in pieces of bytes. Each maximal
// subpart of an ill-formed sequence counts as one character, because the scheduler's answers have
// one U+FFFD for it.
//
// Thread safety: one caller at a time.
// Source:        https://encoding.spec.whatwg.org/#utf-8-decoder
#ifndef QUIRE_DEPLOY_GATEWAY_OPENAI_CHARACTER_COUNTER_H_
#define QUIRE_DEPLOY_GATEWAY_OPENAI_CHARACTER_COUNTER_H_

#include <cstdint>
#include <string_view>

namespace quire {

class CharacterCounter {
 public:
  // Counts a character at its first byte, so a piece that completes a character adds none.
  void Add(std::string_view piece);

  int64_t num_characters() const { return num_characters_; }

 private:
  void Begin(uint8_t lead);

  int64_t num_characters_ = 0;
  int num_missing_ = 0;  // bytes that the last character still needs
  uint8_t low_ = 0x80;   // bounds of the next missing byte
  uint8_t high_ = 0xBF;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_OPENAI_CHARACTER_COUNTER_H_
