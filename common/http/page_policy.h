// InlineSource returns the hash of a page's inline element for the page's content security policy.
// With this hash a browser runs the page's own script and style, but nothing that was injected into
// the page.
//
// Thread safety: a free function, safe from any thread.
// Cost:          linear in the page.
#ifndef QUIRE_COMMON_HTTP_PAGE_POLICY_H_
#define QUIRE_COMMON_HTTP_PAGE_POLICY_H_

#include <string>
#include <string_view>

namespace quire {

// Returns "'sha256-...'" for the text in the page's first <tag>. REQUIRES: the page has a <tag>.
std::string InlineSource(std::string_view html, const std::string& tag);

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_PAGE_POLICY_H_
