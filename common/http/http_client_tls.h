// HttpClientTls makes OpenSSL's context of a client from a TlsFiles, and makes it anew when the
// files were replaced. TLS 1.2 or later.
//
// Thread safety: one thread at a time.
#ifndef QUIRE_COMMON_HTTP_HTTP_CLIENT_TLS_H_
#define QUIRE_COMMON_HTTP_HTTP_CLIENT_TLS_H_

#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"

#include "common/wire/tls_files.h"

#include <boost/asio/ssl/context.hpp>

namespace quire {

class HttpClientTls {
 public:
  // files: null for plain text.
  explicit HttpClientTls(std::shared_ptr<TlsFiles> files) : files_(std::move(files)) {}

  // Takes the newest files. Errors: kInvalidArgument TLS_FILE if OpenSSL refuses them.
  absl::Status Update();

  // Null: plain text. REQUIRES: the last Update succeeded.
  boost::asio::ssl::context* context() { return context_.has_value() ? &*context_ : nullptr; }

 private:
  const std::shared_ptr<TlsFiles> files_;
  TlsTexts in_use_;
  std::optional<boost::asio::ssl::context> context_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_HTTP_CLIENT_TLS_H_
