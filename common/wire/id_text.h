// The alphabet of request ids and tenant names, on the wire and in files.
//
// Thread safety: a free function, safe from any thread.
#ifndef QUIRE_COMMON_WIRE_ID_TEXT_H_
#define QUIRE_COMMON_WIRE_ID_TEXT_H_

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace quire {

inline constexpr size_t kMaxTenantBytes = 128;

// Returns true if text is empty, or has only letters, digits, '.', '_' and '-'.
inline bool IsIdText(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_ID_TEXT_H_
