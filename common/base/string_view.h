// Debian 12's abseil has its own absl::string_view, distinct from std::string_view and without
// conversion either way. Our types use std::string_view; convert at the call with ToAbsl.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_COMMON_BASE_STRING_VIEW_H_
#define QUIRE_COMMON_BASE_STRING_VIEW_H_

#include <string_view>

#include "absl/strings/string_view.h"

namespace quire {

inline absl::string_view ToAbsl(std::string_view text) {
  return absl::string_view(text.data(), text.size());
}

inline std::string_view ToStd(absl::string_view text) {
  return std::string_view(text.data(), text.size());
}

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_STRING_VIEW_H_
