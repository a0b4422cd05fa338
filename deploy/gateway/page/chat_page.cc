#include "deploy/gateway/page/chat_page.h"

#include "absl/strings/str_cat.h"

#include "common/http/page_policy.h"
#include "deploy/gateway/page/chat_page_html.h"

namespace quire {

std::string_view ChatPageHtml() { return kChatPageHtml; }

const std::string& ChatPageSecurityPolicy() {
  static const std::string* const policy =
      new std::string(absl::StrCat("default-src 'none'; connect-src 'self'; style-src ",
                                   InlineSource(kChatPageHtml, "style"),
                                   "; script-src ",
                                   InlineSource(kChatPageHtml, "script"),
                                   "; img-src data:; base-uri 'none'; form-action 'none'; "
                                   "frame-ancestors 'none'"));
  return *policy;
}

}  // namespace quire
