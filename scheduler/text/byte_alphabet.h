// The alphabet of byte-level vocabularies: one printable character for each byte. Printable Latin-1
// stands for itself, the other 68 bytes are U+0100 and on.
//
// Thread safety: free functions, safe from any thread.
// Source:        Radford et al. 2019 (GPT-2), section 2.2, and its published encoder.
#ifndef QUIRE_SCHEDULER_TEXT_BYTE_ALPHABET_H_
#define QUIRE_SCHEDULER_TEXT_BYTE_ALPHABET_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quire {

char32_t ByteToCharacter(uint8_t byte);
std::optional<uint8_t> CharacterToByte(char32_t character);

// The bytes that a token stands for. Returns nullopt if one of its characters is not in the
// alphabet. REQUIRES: token is valid UTF-8.
std::optional<std::string> AlphabetToBytes(std::string_view token);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_BYTE_ALPHABET_H_
