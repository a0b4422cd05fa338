#include "scheduler/text/utf8.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/string_view.h"

namespace quire {
namespace {

// Rule for one lead byte: the character's length in bytes, and the range of its second byte. This
// range excludes overlong forms, surrogates and values above U+10FFFF.
struct LeadRule {
  size_t length;  // 0: not a lead byte
  uint8_t second_min;
  uint8_t second_max;
};

LeadRule RuleOf(uint8_t lead) {
  if (lead >= 0xC2 && lead <= 0xDF) {
    return {2, 0x80, 0xBF};
  }
  if (lead == 0xE0) {
    return {3, 0xA0, 0xBF};
  }
  if (lead == 0xED) {
    return {3, 0x80, 0x9F};
  }
  if (lead >= 0xE1 && lead <= 0xEF) {
    return {3, 0x80, 0xBF};
  }
  if (lead == 0xF0) {
    return {4, 0x90, 0xBF};
  }
  if (lead >= 0xF1 && lead <= 0xF3) {
    return {4, 0x80, 0xBF};
  }
  if (lead == 0xF4) {
    return {4, 0x80, 0x8F};
  }
  return {0, 0, 0};
}

size_t SkipAscii(std::string_view text, size_t position) {
  constexpr uint64_t kHighBits = 0x8080808080808080u;
  while (position + sizeof(uint64_t) <= text.size()) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + position, sizeof(word));
    if ((word & kHighBits) != 0) {
      break;
    }
    position += sizeof(word);
  }
  while (position < text.size() && static_cast<uint8_t>(text[position]) < 0x80) {
    ++position;
  }
  return position;
}

}  // namespace

Utf8Step NextUtf8(std::string_view text) {
  uint8_t lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) {
    return {Utf8Unit::kCharacter, 1, lead};
  }
  LeadRule rule = RuleOf(lead);
  if (rule.length == 0) {
    return {Utf8Unit::kInvalid, 1, 0};
  }
  char32_t code_point = lead & (0x7Fu >> rule.length);
  for (size_t i = 1; i < rule.length; ++i) {
    if (i == text.size()) {
      return {Utf8Unit::kIncomplete, i, 0};
    }
    uint8_t byte = static_cast<uint8_t>(text[i]);
    uint8_t low = i == 1 ? rule.second_min : uint8_t{0x80};
    uint8_t high = i == 1 ? rule.second_max : uint8_t{0xBF};
    if (byte < low || byte > high) {
      return {Utf8Unit::kInvalid, i, 0};
    }
    code_point = code_point << 6 | (byte & 0x3Fu);
  }
  return {Utf8Unit::kCharacter, rule.length, code_point};
}

size_t FindInvalidUtf8(std::string_view text) {
  size_t position = SkipAscii(text, 0);
  while (position < text.size()) {
    Utf8Step step = NextUtf8(text.substr(position));
    if (step.unit != Utf8Unit::kCharacter) {
      return position;
    }
    position = SkipAscii(text, position + step.length);
  }
  return std::string_view::npos;
}

absl::Status CheckUtf8(std::string_view field, std::string_view text) {
  size_t bad = FindInvalidUtf8(text);
  if (bad == std::string_view::npos) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "INVALID_UTF8", absl::StrCat(ToAbsl(field), ": must be valid UTF-8 (bad byte at ", bad, ")"));
}

char32_t DecodeValidUtf8(std::string_view text, size_t* position) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data()) + *position;
  uint8_t lead = bytes[0];
  if (lead < 0x80) {
    *position += 1;
    return lead;
  }
  if (lead < 0xE0) {
    *position += 2;
    return (lead & 0x1Fu) << 6 | (bytes[1] & 0x3Fu);
  }
  if (lead < 0xF0) {
    *position += 3;
    return (lead & 0x0Fu) << 12 | (bytes[1] & 0x3Fu) << 6 | (bytes[2] & 0x3Fu);
  }
  *position += 4;
  return (lead & 0x07u) << 18 | (bytes[1] & 0x3Fu) << 12 | (bytes[2] & 0x3Fu) << 6 |
         (bytes[3] & 0x3Fu);
}

void AppendUtf8(char32_t code_point, std::string* out) {
  auto push = [out](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    push(code_point);
  } else if (code_point < 0x800) {
    push(0xC0 | code_point >> 6);
    push(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    push(0xE0 | code_point >> 12);
    push(0x80 | (code_point >> 6 & 0x3F));
    push(0x80 | (code_point & 0x3F));
  } else {
    push(0xF0 | code_point >> 18);
    push(0x80 | (code_point >> 12 & 0x3F));
    push(0x80 | (code_point >> 6 & 0x3F));
    push(0x80 | (code_point & 0x3F));
  }
}

}  // namespace quire
