#include "common/http/http_tls.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"

#include <boost/asio/buffer.hpp>
#include <openssl/ssl.h>

namespace quire {
namespace {

namespace asio = boost::asio;
namespace ssl = boost::asio::ssl;
using ErrorCode = boost::system::error_code;

ErrorCode Configure(const TlsTexts& texts, ssl::context& context) {
  SSL_CTX* const raw = context.native_handle();
  ::SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
  ::SSL_CTX_set_options(raw, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  ::SSL_CTX_set_num_tickets(raw, 0);
  ::SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  // Buffers of idle connections are freed.
  ::SSL_CTX_set_mode(raw, SSL_MODE_RELEASE_BUFFERS);
  ErrorCode error;
  context.use_certificate_chain(asio::buffer(texts.certificate), error);
  if (!error) {
    context.use_private_key(asio::buffer(texts.key), ssl::context::pem, error);
  }
  if (!error && !texts.authorities.empty()) {
    context.add_certificate_authority(asio::buffer(texts.authorities), error);
  }
  if (!error && !texts.authorities.empty()) {
    context.set_verify_mode(ssl::verify_peer | ssl::verify_fail_if_no_peer_cert, error);
  }
  return error;
}

}  // namespace

absl::Status HttpTls::Update() {
  if (files_ == nullptr) {
    return absl::OkStatus();
  }
  TlsTexts texts = files_->Get();
  if (context_.has_value() && texts == in_use_) {
    return absl::OkStatus();
  }
  ssl::context context(ssl::context::tls_server);
  if (const ErrorCode error = Configure(texts, context); error) {
    return InvalidArgument("TLS_FILE", absl::StrCat("TLS: http: ", error.message()));
  }
  in_use_ = std::move(texts);
  context_ = std::move(context);
  return absl::OkStatus();
}

}  // namespace quire
