#include "scheduler/top_page.h"

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

#include "common/http/page_policy.h"
#include "scheduler/top_page_html.h"

namespace quire {

HttpResponse TopPage() {
  const std::string_view html = kTopPageHtml;
  return {.status_code = 200,
          .body = std::string(html),
          .content_type = "text/html; charset=utf-8",
          .headers = {{"Content-Security-Policy",
                       absl::StrCat("default-src 'none'; script-src ",
                                    InlineSource(html, "script"),
                                    "; style-src ",
                                    InlineSource(html, "style"),
                                    "; connect-src 'self'; base-uri 'none'; "
                                    "form-action 'none'; frame-ancestors 'none'")}}};
}

}  // namespace quire
