#include "deploy/gateway/openai/character_counter.h"

namespace quire {

void CharacterCounter::Add(std::string_view piece) {
  for (const char c : piece) {
    const auto byte = static_cast<uint8_t>(c);
    if (num_missing_ > 0 && byte >= low_ && byte <= high_) {
      --num_missing_;
      low_ = 0x80;
      high_ = 0xBF;
    } else {
      ++num_characters_;
      Begin(byte);
    }
  }
}

// The bounds of the second byte exclude overlong forms, surrogates and values above U+10FFFF.
void CharacterCounter::Begin(uint8_t lead) {
  low_ = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  high_ = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    num_missing_ = 1;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    num_missing_ = 2;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    num_missing_ = 3;
  } else {
    num_missing_ = 0;  // a character of one byte, or no character
  }
}

}  // namespace quire
