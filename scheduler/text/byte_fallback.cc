#include "scheduler/text/byte_fallback.h"

#include <algorithm>

namespace quire {
namespace {

constexpr std::string_view kOpen = "<0x";
constexpr std::string_view kHexDigits = "0123456789ABCDEF";

std::optional<uint32_t> HexValue(char c) {
  if (c >= '0' && c <= '9') {
    return static_cast<uint32_t>(c - '0');
  }
  if (c >= 'a' && c <= 'f') {
    return static_cast<uint32_t>(c - 'a' + 10);
  }
  if (c >= 'A' && c <= 'F') {
    return static_cast<uint32_t>(c - 'A' + 10);
  }
  return std::nullopt;
}

}  // namespace

std::string ByteTokenText(uint8_t byte) {
  return std::string(kOpen) + kHexDigits[byte >> 4] + kHexDigits[byte & 15] + '>';
}

std::optional<uint8_t> ParseByteToken(std::string_view token) {
  if (token.size() != 6 || !token.starts_with(kOpen) || token[5] != '>') {
    return std::nullopt;
  }
  std::optional<uint32_t> high = HexValue(token[3]);
  std::optional<uint32_t> low = HexValue(token[4]);
  if (!high.has_value() || !low.has_value()) {
    return std::nullopt;
  }
  return static_cast<uint8_t>(*high << 4 | *low);
}

bool IsBrokenByteToken(std::string_view token) {
  if (!token.starts_with(kOpen) || !token.ends_with('>') || ParseByteToken(token).has_value()) {
    return false;
  }
  std::string_view number = token.substr(kOpen.size(), token.size() - kOpen.size() - 1);
  return std::all_of(number.begin(), number.end(), [](char c) {
    return c == '+' || c == '-' || HexValue(c).has_value();
  });
}

}  // namespace quire
