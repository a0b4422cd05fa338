#include "scheduler/top_page.h"

#include <array>
#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/wire/sha256.h"
#include "scheduler/top_page_html.h"

namespace quire {
namespace {

// Returns the entry that admits an inline element in a content security policy: the hash of the
// element's text. With this policy a browser runs no text that was injected into the page.
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

HttpResponse TopPage() {
  const std::string_view html = kTopPageHtml;
  return {.status_code = 200,
          .body = std::string(html),
          .content_type = "text/html; charset=utf-8",
          .headers = {{"Content-Security-Policy",
                       absl::StrCat("default-src 'none'; script-src ",
                                    SourceOf(html, "script"),
                                    "; style-src ",
                                    SourceOf(html, "style"),
                                    "; connect-src 'self'; base-uri 'none'; "
                                    "form-action 'none'; frame-ancestors 'none'")}}};
}

}  // namespace quire
