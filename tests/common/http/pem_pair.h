// MakePemPair makes a self-signed certificate, which is its own authority, and its key.
//
// Thread safety: free functions, for tests.
#ifndef QUIRE_TESTS_COMMON_HTTP_PEM_PAIR_H_
#define QUIRE_TESTS_COMMON_HTTP_PEM_PAIR_H_

#include <string>

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

namespace quire {

struct PemPair {
  std::string certificate;
  std::string key;
};

inline std::string TakeText(BIO* bio) {
  char* data = nullptr;
  const auto size = static_cast<size_t>(BIO_get_mem_data(bio, &data));
  std::string text(data, size);
  ::BIO_free(bio);
  return text;
}

// names: as OpenSSL writes them, "DNS:localhost,IP:127.0.0.1"; empty for none.
inline PemPair MakePemPair(const std::string& names = "") {
  EVP_PKEY* key = ::EVP_EC_gen("P-256");
  X509* certificate = ::X509_new();
  ::X509_set_version(certificate, 2);
  ::ASN1_INTEGER_set(::X509_get_serialNumber(certificate), 1);
  ::X509_gmtime_adj(::X509_getm_notBefore(certificate), -60);
  ::X509_gmtime_adj(::X509_getm_notAfter(certificate), 3600);
  ::X509_set_pubkey(certificate, key);
  if (!names.empty()) {
    X509_EXTENSION* extension =
        ::X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, names.c_str());
    ::X509_add_ext(certificate, extension, -1);
    ::X509_EXTENSION_free(extension);
  }
  ::X509_sign(certificate, key, ::EVP_sha256());
  BIO* certificate_text = ::BIO_new(::BIO_s_mem());
  BIO* key_text = ::BIO_new(::BIO_s_mem());
  ::PEM_write_bio_X509(certificate_text, certificate);
  ::PEM_write_bio_PrivateKey(key_text, key, nullptr, nullptr, 0, nullptr, nullptr);
  ::X509_free(certificate);
  ::EVP_PKEY_free(key);
  return {TakeText(certificate_text), TakeText(key_text)};
}

}  // namespace quire

#endif  // QUIRE_TESTS_COMMON_HTTP_PEM_PAIR_H_
