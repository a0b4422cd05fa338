// The alphabet of byte-level vocabularies: one printable character for each byte. A byte that is a
// printable Latin-1 character stands for itself. The other 68 bytes have the characters from U+0100
// on, in order.
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

// Returns the bytes that a token stands for, or nullopt if a character of the token is not in the
// alphabet. REQUIRES: token is valid UTF-8.
std::optional<std::string> AlphabetToBytes(std::string_view token);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_BYTE_ALPHABET_H_
