#include "common/http/http_message.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "common/base/string_view.h"

#include <boost/beast/http/status.hpp>

namespace quire {
namespace {

// Appends the text, with a space for each control character. Without this, a line break in a
// client's text could end the header and forge an answer.
void AppendClean(std::string_view text, std::string* out) {
  for (const char c : text) {
    out->push_back(absl::ascii_iscntrl(static_cast<unsigned char>(c)) ? ' ' : c);
  }
}

void AppendHeader(std::string_view name, std::string_view value, std::string* out) {
  AppendClean(name, out);
  out->append(": ");
  AppendClean(value, out);
  out->append("\r\n");
}

}  // namespace

std::string_view HttpRequest::Header(std::string_view name) const {
  for (const auto& [own_name, value] : headers) {
    if (absl::EqualsIgnoreCase(own_name, ToAbsl(name))) {
      return value;
    }
  }
  return "";
}

bool HasBody(int status_code) { return status_code != 204 && status_code != 304; }

void AppendResponseHead(const HttpResponse& response,
                        bool is_chunked,
                        bool is_http_1_0,
                        bool keep_alive,
                        std::string* out) {
  const auto reason = boost::beast::http::obsolete_reason(
      static_cast<boost::beast::http::status>(response.status_code));
  absl::StrAppend(out, "HTTP/1.1 ", response.status_code, " ");
  out->append(reason.data(), reason.size());
  out->append("\r\n");
  if (HasBody(response.status_code)) {
    if (!response.content_type.empty()) {
      AppendHeader("Content-Type", response.content_type, out);
    }
    if (!is_chunked) {
      absl::StrAppend(out, "Content-Length: ", response.body.size(), "\r\n");
    } else if (!is_http_1_0) {
      out->append("Transfer-Encoding: chunked\r\n");
    }
  }
  out->append("Cache-Control: no-store\r\n");
  for (const auto& [name, value] : response.headers) {
    AppendHeader(name, value, out);
  }
  if (!keep_alive) {
    out->append("Connection: close\r\n");
  } else if (is_http_1_0) {
    out->append("Connection: keep-alive\r\n");
  }
  out->append("\r\n");
}

}  // namespace quire
