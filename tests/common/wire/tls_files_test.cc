// Certificates are made here, with the library that checks them; tests/integration/tls_test.py has
// those of the openssl program.
#include "common/wire/tls_files.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "tests/support/capture_log.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

namespace quire {
namespace {

using testing::HasSubstr;

struct Pair {
  std::string certificate;
  std::string key;
  std::string encrypted_key;
};

std::string Take(BIO* bio) {
  char* data = nullptr;
  const auto size = static_cast<size_t>(BIO_get_mem_data(bio, &data));
  std::string text(data, size);
  ::BIO_free(bio);
  return text;
}

// Self-signed, which is an authority too.
Pair MakePair(EVP_PKEY* key = ::EVP_EC_gen("P-256")) {
  X509* certificate = ::X509_new();
  ::ASN1_INTEGER_set(::X509_get_serialNumber(certificate), 1);
  ::X509_gmtime_adj(::X509_getm_notBefore(certificate), 0);
  ::X509_gmtime_adj(::X509_getm_notAfter(certificate), 3600);
  ::X509_set_pubkey(certificate, key);
  ::X509_sign(certificate, key, ::EVP_sha256());
  BIO* certificate_text = ::BIO_new(::BIO_s_mem());
  BIO* key_text = ::BIO_new(::BIO_s_mem());
  BIO* encrypted = ::BIO_new(::BIO_s_mem());
  ::PEM_write_bio_X509(certificate_text, certificate);
  ::PEM_write_bio_PrivateKey(key_text, key, nullptr, nullptr, 0, nullptr, nullptr);
  ::PEM_write_bio_PKCS8PrivateKey(
      encrypted, key, ::EVP_aes_128_cbc(), "secret", 6, nullptr, nullptr);
  ::X509_free(certificate);
  ::EVP_PKEY_free(key);
  return {Take(certificate_text), Take(key_text), Take(encrypted)};
}

class TlsFilesTest : public testing::Test {
 protected:
  TlsFilesTest() : pair_(MakePair()), other_(MakePair()) {
    std::string pattern = testing::TempDir() + "quire-tls-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    paths_ = {.certificate = folder_ + "/cert.pem",
              .key = folder_ + "/key.pem",
              .authorities = folder_ + "/ca.pem"};
    Write(pair_);
  }
  ~TlsFilesTest() override { std::filesystem::remove_all(folder_); }

  static void WriteFile(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  void Write(const Pair& pair) const {
    WriteFile(paths_.certificate, pair.certificate);
    WriteFile(paths_.key, pair.key);
    WriteFile(paths_.authorities, pair.certificate);
  }
  // Why the files are refused; empty: they are not.
  std::string Fault() const { return FaultOf(paths_); }
  static std::string FaultOf(const TlsTexts& paths) {
    const absl::Status status = ReadTlsFiles(paths).status();
    EXPECT_EQ(ReasonOf(status), status.ok() ? "" : "TLS_FILE");
    return std::string(status.message());
  }

  const Pair pair_;
  const Pair other_;
  std::string folder_;
  TlsTexts paths_;
};

TEST_F(TlsFilesTest, WhatBelongsTogetherIsRead) {
  WriteFile(paths_.certificate, "chain\n" + pair_.certificate + "and\n" + other_.certificate);

  const absl::StatusOr<TlsTexts> texts = ReadTlsFiles(paths_);

  ASSERT_TRUE(texts.ok()) << texts.status();
  EXPECT_THAT(texts->certificate, HasSubstr(other_.certificate));
  EXPECT_EQ(texts->key, pair_.key);
  EXPECT_EQ(texts->authorities, pair_.certificate);
}

TEST_F(TlsFilesTest, AnEmptyPathIsNoFile) {
  const absl::StatusOr<TlsTexts> texts = ReadTlsFiles({.authorities = paths_.authorities});

  ASSERT_TRUE(texts.ok()) << texts.status();
  EXPECT_EQ(*texts, TlsTexts{.authorities = pair_.certificate});
}

TEST_F(TlsFilesTest, ACertificateNeedsItsKeyAndAKeyItsCertificate) {
  EXPECT_THAT(FaultOf({.certificate = paths_.certificate}), HasSubstr("must be given together"));
  EXPECT_THAT(FaultOf({.key = paths_.key}), HasSubstr("must be given together"));
}

TEST_F(TlsFilesTest, AFileThatIsMissingIsNamed) {
  for (const std::string& path : {paths_.certificate, paths_.key, paths_.authorities}) {
    Write(pair_);
    std::filesystem::remove(path);
    EXPECT_THAT(Fault(), HasSubstr(path));
  }
}

TEST_F(TlsFilesTest, GarbageAndHalvesAreNamedAndNotTold) {
  const std::string secret = "-----BEGIN canary";
  for (const std::string& path : {paths_.certificate, paths_.key, paths_.authorities}) {
    const std::string& whole = path == paths_.key ? pair_.key : pair_.certificate;
    for (const std::string& text : {std::string(),
                                    secret,
                                    std::string("\0", 1) + whole,
                                    whole.substr(0, whole.size() / 2),
                                    whole.substr(0, 60) + "canary" + whole.substr(66)}) {
      Write(pair_);
      WriteFile(path, text);
      EXPECT_THAT(Fault(), HasSubstr(path)) << text;
      EXPECT_EQ(Fault().find("canary"), std::string::npos) << Fault();
    }
  }
}

TEST_F(TlsFilesTest, AChainWithGarbageBehindItsFirstCertificateIsRefused) {
  WriteFile(paths_.certificate, pair_.certificate + other_.certificate.substr(0, 200));

  EXPECT_THAT(Fault(), HasSubstr(paths_.certificate));
}

TEST_F(TlsFilesTest, AFileThatIsTooLargeIsNotRead) {
  WriteFile(paths_.authorities, std::string((1 << 20) + 1, '\n'));

  EXPECT_THAT(Fault(), HasSubstr("too large"));
}

TEST_F(TlsFilesTest, AKeyOfAnotherCertificateIsRefused) {
  WriteFile(paths_.key, other_.key);

  EXPECT_THAT(Fault(), HasSubstr(paths_.key + ": is not the key of the certificate"));
}

TEST_F(TlsFilesTest, AnEncryptedKeyIsRefusedAndNobodyIsAsked) {
  WriteFile(paths_.key, pair_.encrypted_key);

  EXPECT_THAT(Fault(), HasSubstr("holds no unencrypted private key"));
}

// OpenSSL refuses such a key, so every connection to the server would fail.
TEST_F(TlsFilesTest, AKeyThatIsTooWeakIsRefused) {
  Write(MakePair(::EVP_RSA_gen(512)));

  EXPECT_THAT(Fault(), HasSubstr("key too small"));
}

TEST_F(TlsFilesTest, NewFilesAreInUseAndBadOnesAreNotAndToldOnce) {
  const std::shared_ptr<TlsFiles> files = *TlsFiles::Open(paths_);
  const auto get_anew = [&files] {
    const Instant until = SteadyNow() + TlsFiles::kMaxAgeNs;
    while (SteadyNow() <= until) {
      ::usleep(10'000);
    }
    return files->Get();
  };
  EXPECT_EQ(get_anew().key, pair_.key);

  CaptureStderr();
  WriteFile(paths_.key, other_.key);
  EXPECT_EQ(get_anew().key, pair_.key) << "half of a new pair";
  EXPECT_EQ(get_anew().key, pair_.key);
  const std::string log = GetCapturedStderr();
  EXPECT_EQ(log.find("are not used"), log.rfind("are not used")) << log;
  EXPECT_THAT(log, HasSubstr("are not used"));

  Write(other_);
  EXPECT_EQ(get_anew(),
            (TlsTexts{.certificate = other_.certificate,
                      .key = other_.key,
                      .authorities = other_.certificate}));
}

}  // namespace
}  // namespace quire
