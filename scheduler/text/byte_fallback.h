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

// "<0x0A>" for 10.
std::string ByteTokenText(uint8_t byte);

// The byte of a token "<0xHH>"; hexadecimal digits of either case.
std::optional<uint8_t> ParseByteToken(std::string_view token);

// Whether the token looks like one and is not: "<0x100>", "<0x-1>", "<0x>".
bool IsBrokenByteToken(std::string_view token);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_BYTE_FALLBACK_H_
