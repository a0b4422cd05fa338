#include "tests/support/certificate_tls.h"

#include <csignal>
#include <memory>

#include "common/base/check.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

namespace quire {
namespace {

template <typename Object, void (*Free)(Object*)>
struct Freer {
  void operator()(Object* object) const { Free(object); }
};
using Context = std::unique_ptr<SSL_CTX, Freer<SSL_CTX, SSL_CTX_free>>;
using Connection = std::unique_ptr<SSL, Freer<SSL, SSL_free>>;
using Certificate = std::unique_ptr<X509, Freer<X509, X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY, EVP_PKEY_free>>;

// Installs a self-signed certificate that is valid for an hour.
void UseNewCertificate(SSL_CTX* context) {
  const Key key(::EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256"));
  const Certificate certificate(::X509_new());
  ::X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
  ::X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  QUIRE_CHECK(::X509_set_pubkey(certificate.get(), key.get()) == 1 &&
              ::X509_sign(certificate.get(), key.get(), ::EVP_sha256()) > 0 &&
              ::SSL_CTX_use_certificate(context, certificate.get()) == 1 &&
              ::SSL_CTX_use_PrivateKey(context, key.get()) == 1);
}

bool ShakesHands(int socket, bool dials) {
  // OpenSSL may write after the peer hung up, which would raise SIGPIPE.
  sigset_t broken_pipe;
  ::sigemptyset(&broken_pipe);
  ::sigaddset(&broken_pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  const Context context(::SSL_CTX_new(::TLS_method()));
  QUIRE_CHECK(context != nullptr);
  if (!dials) {
    UseNewCertificate(context.get());
  }
  const Connection connection(::SSL_new(context.get()));
  QUIRE_CHECK(connection != nullptr && ::SSL_set_fd(connection.get(), socket) == 1);
  const int done = dials ? ::SSL_connect(connection.get()) : ::SSL_accept(connection.get());
  ::ERR_clear_error();
  return done == 1;
}

}  // namespace

bool ConnectsByCertificate(int socket) { return ShakesHands(socket, /*dials=*/true); }

bool AcceptsByCertificate(int socket) { return ShakesHands(socket, /*dials=*/false); }

}  // namespace quire
