// The gateway's page /, where a user can chat with the model or let it complete a text. The page is
// one text, compiled into the program, and requests only v1/models, v1/chat/completions and
// v1/completions.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_DEPLOY_GATEWAY_PAGE_CHAT_PAGE_H_
#define QUIRE_DEPLOY_GATEWAY_PAGE_CHAT_PAGE_H_

#include <string>
#include <string_view>

namespace quire {

// Media type: text/html; charset=utf-8.
std::string_view ChatPageHtml();

// The Content-Security-Policy to send with the page. The browser runs only the page's own script
// and style, sends requests to this server alone, and shows the page in no frame. The first call
// hashes script and style.
const std::string& ChatPageSecurityPolicy();

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_PAGE_CHAT_PAGE_H_
