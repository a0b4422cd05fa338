// The byte tokens of SentencePiece vocabularies, "<0x00>" to "<0xFF>".
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_SCHEDULER_TEXT_BYTE_FALLBACK_H_
#define QUIRE_SCHEDULER_TEXT_BYTE_FALLBACK_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quire {

// Returns "<0x0A>" for 10.
std::string ByteTokenText(uint8_t byte);

// Returns the byte of a token "<0xHH>", with digits of either case, or nullopt for other tokens.
std::optional<uint8_t> ParseByteToken(std::string_view token);

// True if the token looks like a byte token but is not one: "<0x100>", "<0x-1>", "<0x>".
bool IsBrokenByteToken(std::string_view token);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_BYTE_FALLBACK_H_
