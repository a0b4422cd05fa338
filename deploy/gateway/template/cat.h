// Cat joins texts and integers, like absl::StrCat, which takes no std::string_view in Debian 12.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_DEPLOY_GATEWAY_TEMPLATE_CAT_H_
#define QUIRE_DEPLOY_GATEWAY_TEMPLATE_CAT_H_

#include <string>
#include <string_view>
#include <type_traits>

namespace quire {

template <class T>
void AppendTo(std::string& text, const T& part) {
  if constexpr (std::is_integral_v<T>) {
    text += std::to_string(part);
  } else {
    text += std::string_view(part);
  }
}

template <class... T>
std::string Cat(const T&... parts) {
  std::string text;
  (AppendTo(text, parts), ...);
  return text;
}

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_TEMPLATE_CAT_H_
