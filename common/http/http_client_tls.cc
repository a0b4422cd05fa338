#include "common/http/http_client_tls.h"

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
  ::SSL_CTX_set_min_proto_version(context.native_handle(), TLS1_2_VERSION);
  ErrorCode error;
  context.set_verify_mode(ssl::verify_peer, error);
  if (!error && texts.authorities.empty()) {
    context.set_default_verify_paths(error);
  } else if (!error) {
    context.add_certificate_authority(asio::buffer(texts.authorities), error);
  }
  if (!error && !texts.certificate.empty()) {
    context.use_certificate_chain(asio::buffer(texts.certificate), error);
    if (!error) {
      context.use_private_key(asio::buffer(texts.key), ssl::context::pem, error);
    }
  }
  return error;
}

}  // namespace

absl::Status HttpClientTls::Update() {
  if (files_ == nullptr) {
    return absl::OkStatus();
  }
  TlsTexts texts = files_->Get();
  if (context_.has_value() && texts == in_use_) {
    return absl::OkStatus();
  }
  ssl::context context(ssl::context::tls_client);
  if (const ErrorCode error = Configure(texts, context); error) {
    return InvalidArgument("TLS_FILE", absl::StrCat("TLS: http: ", error.message()));
  }
  in_use_ = std::move(texts);
  context_ = std::move(context);
  return absl::OkStatus();
}

}  // namespace quire
