// In Debian 12's abseil, absl::string_view is a separate class that does not convert from or to
// std::string_view. Quire uses std::string_view, and converts with ToAbsl where Quire calls abseil.
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
