#include "common/http/page_policy.h"

#include <array>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/wire/sha256.h"

namespace quire {

std::string InlineSource(std::string_view html, const std::string& tag) {
  const std::string begin = absl::StrCat("<", tag, ">");
  const size_t first = html.find(begin);
  const size_t end = html.find(absl::StrCat("</", tag, ">"));
  QUIRE_CHECK(first != std::string_view::npos && end != std::string_view::npos);
  const size_t text = first + begin.size();
  const std::array<uint8_t, 32> hash = Sha256(html.substr(text, end - text));
  return absl::StrCat("'sha256-",
                      absl::Base64Escape({reinterpret_cast<const char*>(hash.data()), hash.size()}),
                      "'");
}

}  // namespace quire
