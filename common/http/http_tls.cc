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

void SetServerOptions(SSL_CTX* context) {
  ::SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  ::SSL_CTX_set_num_tickets(context, 0);
  ::SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  // Frees the buffers of idle connections.
  ::SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
}

ErrorCode SetCertificate(const TlsTexts& texts, ssl::context& context) {
  ErrorCode error;
  context.use_certificate_chain(asio::buffer(texts.certificate), error);
  if (!error) {
    context.use_private_key(asio::buffer(texts.key), ssl::context::pem, error);
  }
  return error;
}

ErrorCode Configure(HttpTls::Side side, const TlsTexts& texts, ssl::context& context) {
  const bool is_server = side == HttpTls::Side::kServer;
  ::SSL_CTX_set_min_proto_version(context.native_handle(), TLS1_2_VERSION);
  if (is_server) {
    SetServerOptions(context.native_handle());
  }
  ErrorCode error;
  if (is_server || !texts.certificate.empty()) {
    error = SetCertificate(texts, context);
  }
  if (!error && !texts.authorities.empty()) {
    context.add_certificate_authority(asio::buffer(texts.authorities), error);
  } else if (!error && !is_server) {
    context.set_default_verify_paths(error);
  }
  if (!error && (!is_server || !texts.authorities.empty())) {
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
  ssl::context context(side_ == Side::kServer ? ssl::context::tls_server
                                              : ssl::context::tls_client);
  if (const ErrorCode error = Configure(side_, texts, context); error) {
    return InvalidArgument("TLS_FILE", absl::StrCat("TLS: http: ", error.message()));
  }
  in_use_ = std::move(texts);
  context_ = std::move(context);
  return absl::OkStatus();
}

}  // namespace quire
