#include "deploy/gateway/page/chat_page.h"

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/wire/sha256.h"
#include "deploy/gateway/page/chat_page_html.h"

namespace quire {
namespace {

// Returns the policy's entry for the only element of that tag: the hash of its text.
std::string SourceOf(std::string_view html, const std::string& tag) {
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

}  // namespace

std::string_view ChatPageHtml() { return kChatPageHtml; }

const std::string& ChatPageSecurityPolicy() {
  static const std::string* const policy =
      new std::string(absl::StrCat("default-src 'none'; connect-src 'self'; style-src ",
                                   SourceOf(kChatPageHtml, "style"),
                                   "; script-src ",
                                   SourceOf(kChatPageHtml, "script"),
                                   "; img-src data:; base-uri 'none'; form-action 'none'; "
                                   "frame-ancestors 'none'"));
  return *policy;
}

}  // namespace quire
