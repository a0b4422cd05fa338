#include "common/wire/tls_files.h"

#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/read_file.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

namespace quire {
namespace {

// Upper bound on a PEM file: five times the size of the bundle of authorities that browsers trust.
constexpr int64_t kMaxFileBytes = int64_t{1} << 20;

template <typename Object, void (*Free)(Object*)>
struct Freer {
  void operator()(Object* object) const { Free(object); }
};
using Context = std::unique_ptr<SSL_CTX, Freer<SSL_CTX, SSL_CTX_free>>;
using Certificate = std::unique_ptr<X509, Freer<X509, X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY, EVP_PKEY_free>>;
using Source = std::unique_ptr<BIO, Freer<BIO, BIO_free_all>>;

absl::Status Fault(const std::string& path, std::string_view rule) {
  return InvalidArgument("TLS_FILE", absl::StrCat("TLS: ", path, ": ", ToAbsl(rule)));
}

// Returns a Fault whose rule ends with OpenSSL's reason, which never quotes the file.
absl::Status LibraryFault(const std::string& path, std::string_view rule) {
  const char* cause = ::ERR_reason_error_string(::ERR_peek_last_error());
  ::ERR_clear_error();
  return Fault(path,
               cause == nullptr ? std::string(rule) : absl::StrCat(ToAbsl(rule), " (", cause, ")"));
}

// Returns a BIO that ends at the first zero byte of the text, because gRPC takes the text as a C
// string.
Source Read(const std::string& text) { return Source(::BIO_new_mem_buf(text.c_str(), /*len=*/-1)); }

// Without this callback OpenSSL would ask for a password at the terminal.
int NoPassword(char* /*buffer*/, int /*size*/, int /*is_for_writing*/, void* /*data*/) { return 0; }

Certificate NextCertificate(BIO* source) {
  return Certificate(::PEM_read_bio_X509_AUX(source, nullptr, NoPassword, nullptr));
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  if (path.empty()) {
    return "";
  }
  absl::StatusOr<std::string> text = ReadFile(path, kMaxFileBytes);
  return text.ok() ? std::move(text)
                   : InvalidArgument("TLS_FILE", absl::StrCat("TLS: ", text.status().message()));
}

// Checks that the text has at least one certificate, and that no certificate is broken.
absl::Status CheckCertificates(const std::string& path, const std::string& text) {
  const Source source = Read(text);
  int count = 0;
  while (NextCertificate(source.get()) != nullptr) {
    ++count;
  }
  const bool is_end = ERR_GET_REASON(::ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  if (count == 0 && is_end) {
    ::ERR_clear_error();
    return Fault(path, "holds no certificate in PEM");
  }
  if (!is_end) {
    return LibraryFault(path, "a certificate cannot be read");
  }
  ::ERR_clear_error();
  return absl::OkStatus();
}

// Loads certificate and key as gRPC does, so that gRPC accepts every pair that passes this check.
absl::Status CheckPair(const TlsTexts& paths, const TlsTexts& texts) {
  ::ERR_clear_error();
  const Context context(::SSL_CTX_new(::TLS_method()));
  const Certificate certificate = NextCertificate(Read(texts.certificate).get());
  if (context == nullptr || certificate == nullptr ||
      ::SSL_CTX_use_certificate(context.get(), certificate.get()) != 1) {
    return LibraryFault(paths.certificate, "the certificate cannot be used");
  }
  if (::X509_cmp_current_time(::X509_get0_notAfter(certificate.get())) < 0) {
    return Fault(paths.certificate, "the certificate has expired");
  }
  const Key key(::PEM_read_bio_PrivateKey(Read(texts.key).get(), nullptr, NoPassword, nullptr));
  if (key == nullptr) {
    return LibraryFault(paths.key, "holds no unencrypted private key in PEM");
  }
  ::ERR_clear_error();
  if (::X509_check_private_key(certificate.get(), key.get()) != 1) {
    ::ERR_clear_error();
    return Fault(paths.key, "is not the key of the certificate");
  }
  if (::SSL_CTX_use_PrivateKey(context.get(), key.get()) != 1) {
    return LibraryFault(paths.key, "the key cannot be used");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsTexts& paths) {
  if (paths.certificate.empty() != paths.key.empty()) {
    return InvalidArgument("TLS_FILE", "TLS: a certificate and its key must be given together");
  }
  TlsTexts texts;
  QUIRE_ASSIGN_OR_RETURN(texts.certificate, ReadText(paths.certificate));
  QUIRE_ASSIGN_OR_RETURN(texts.key, ReadText(paths.key));
  QUIRE_ASSIGN_OR_RETURN(texts.authorities, ReadText(paths.authorities));
  ::ERR_clear_error();
  if (!paths.certificate.empty()) {
    QUIRE_RETURN_IF_ERROR(CheckCertificates(paths.certificate, texts.certificate));
    QUIRE_RETURN_IF_ERROR(CheckPair(paths, texts));
  }
  if (!paths.authorities.empty()) {
    QUIRE_RETURN_IF_ERROR(CheckCertificates(paths.authorities, texts.authorities));
  }
  return texts;
}

absl::StatusOr<std::shared_ptr<TlsFiles>> TlsFiles::Open(const TlsTexts& paths) {
  QUIRE_ASSIGN_OR_RETURN(TlsTexts texts, ReadTlsFiles(paths));
  return std::shared_ptr<TlsFiles>(new TlsFiles(paths, std::move(texts)));
}

TlsFiles::TlsFiles(TlsTexts paths, TlsTexts texts)
    : paths_(std::move(paths)),
      texts_(
          "TLS files",
          paths_.certificate.empty() ? paths_.authorities : paths_.certificate,
          [paths = paths_] { return ReadTlsFiles(paths); },
          std::move(texts)) {}

}  // namespace quire
