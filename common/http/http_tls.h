// HttpTls makes OpenSSL's context from a TlsFiles, and a new context when the files were replaced.
// Accepts TLS 1.2 and later. A server asks clients for a certificate if the files have authorities,
// and gives no session tickets, so that no ticket outlives a client's certificate. A client trusts
// the files' authorities, or the system's if the files have none.
//
// Thread safety: one thread at a time.
#ifndef QUIRE_COMMON_HTTP_HTTP_TLS_H_
#define QUIRE_COMMON_HTTP_HTTP_TLS_H_

#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"

#include "common/wire/tls_files.h"

#include <boost/asio/ssl/context.hpp>

namespace quire {

class HttpTls {
 public:
  enum class Side { kServer, kClient };

  // files: null for plain text.
  HttpTls(Side side, std::shared_ptr<TlsFiles> files) : side_(side), files_(std::move(files)) {}

  // Takes the newest files. Errors: kInvalidArgument TLS_FILE if OpenSSL refuses them; the last
  // context then stays in use.
  absl::Status Update();

  // Returns null for plain text. REQUIRES: the first Update succeeded.
  boost::asio::ssl::context* context() { return context_.has_value() ? &*context_ : nullptr; }

 private:
  const Side side_;
  const std::shared_ptr<TlsFiles> files_;
  TlsTexts in_use_;
  std::optional<boost::asio::ssl::context> context_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_HTTP_TLS_H_
