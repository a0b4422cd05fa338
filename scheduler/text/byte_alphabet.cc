#include "scheduler/text/byte_alphabet.h"

#include <array>

#include "scheduler/text/utf8.h"

namespace quire {
namespace {

constexpr char32_t kFirstExtra = 0x100;
constexpr size_t kAlphabetEnd = kFirstExtra + 68;

constexpr bool StandsForItself(uint32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Tables {
  std::array<char32_t, 256> character{};
  std::array<int16_t, kAlphabetEnd> byte{};
};

constexpr Tables MakeTables() {
  Tables tables;
  for (int16_t& byte : tables.byte) {
    byte = -1;
  }
  char32_t extra = kFirstExtra;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    char32_t character = StandsForItself(byte) ? byte : extra++;
    tables.character[byte] = character;
    tables.byte[character] = static_cast<int16_t>(byte);
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

}  // namespace

char32_t ByteToCharacter(uint8_t byte) { return kTables.character[byte]; }

std::optional<uint8_t> CharacterToByte(char32_t character) {
  if (character >= kTables.byte.size() || kTables.byte[character] < 0) {
    return std::nullopt;
  }
  return static_cast<uint8_t>(kTables.byte[character]);
}

std::optional<std::string> AlphabetToBytes(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  size_t position = 0;
  while (position < token.size()) {
    std::optional<uint8_t> byte = CharacterToByte(DecodeValidUtf8(token, &position));
    if (!byte.has_value()) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(*byte));
  }
  return bytes;
}

}  // namespace quire
