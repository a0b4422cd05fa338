// HttpServer over TLS, with certificates that are made here.
#include "common/http/http_tls.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "common/http/http_server.h"
#include "tests/common/http/http_socket.h"
#include "tests/common/http/pem_pair.h"

#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

namespace quire {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// A client that accepts any certificate.
class TlsClient {
 public:
  // own: the client's certificate; null for none.
  explicit TlsClient(const HttpServer& server,
                     int max_version = TLS1_3_VERSION,
                     const PemPair* own = nullptr)
      : client_(server), context_(::SSL_CTX_new(::TLS_client_method())) {
    ::signal(SIGPIPE, SIG_IGN);
    ::SSL_CTX_set_max_proto_version(context_, max_version);
    ::SSL_CTX_set_security_level(context_, 0);  // else OpenSSL itself refuses old versions
    if (own != nullptr) {
      BIO* certificate = ::BIO_new_mem_buf(own->certificate.data(), -1);
      X509* x509 = ::PEM_read_bio_X509(certificate, nullptr, nullptr, nullptr);
      BIO* key_text = ::BIO_new_mem_buf(own->key.data(), -1);
      EVP_PKEY* key = ::PEM_read_bio_PrivateKey(key_text, nullptr, nullptr, nullptr);
      ::SSL_CTX_use_certificate(context_, x509);
      ::SSL_CTX_use_PrivateKey(context_, key);
      ::X509_free(x509);
      ::EVP_PKEY_free(key);
      ::BIO_free(certificate);
      ::BIO_free(key_text);
    }
    ssl_ = ::SSL_new(context_);
    ::SSL_set_fd(ssl_, client_.fd());
    is_connected_ = ::SSL_connect(ssl_) == 1;
  }
  ~TlsClient() {
    ::SSL_free(ssl_);
    ::SSL_CTX_free(context_);
  }
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  bool is_connected() const { return is_connected_; }
  int version() const { return ::SSL_version(ssl_); }
  // True after ReadToEnd if the server ended TLS in order.
  bool has_clean_end() const { return (::SSL_get_shutdown(ssl_) & SSL_RECEIVED_SHUTDOWN) != 0; }

  std::string PeerCertificate() const {
    BIO* text = ::BIO_new(::BIO_s_mem());
    X509* certificate = ::SSL_get1_peer_certificate(ssl_);
    ::PEM_write_bio_X509(text, certificate);
    ::X509_free(certificate);
    return TakeText(text);
  }

  void Send(const std::string& bytes) {
    ::SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size()));
  }
  std::string ReadUntil(const std::string& end) {
    std::string text;
    char c = 0;
    while (!text.ends_with(end) && ::SSL_read(ssl_, &c, 1) == 1) {
      text.push_back(c);
    }
    return text;
  }
  std::string ReadToEnd() {
    std::string text;
    char c = 0;
    while (::SSL_read(ssl_, &c, 1) == 1) {
      text.push_back(c);
    }
    return text;
  }

 private:
  HttpSocket client_;
  SSL_CTX* const context_;
  SSL* ssl_ = nullptr;
  bool is_connected_ = false;
};

class HttpTlsTest : public testing::Test {
 public:
  ~HttpTlsTest() override { std::filesystem::remove_all(folder_); }

 protected:
  HttpTlsTest() {
    std::string pattern = testing::TempDir() + "quire-http-tls-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    Write(pair_);
  }

  // Replaces each file by a rename.
  void Write(const PemPair& pair) const {
    for (const auto& [name, text] :
         {std::pair<std::string, std::string>{"cert.pem", pair.certificate},
          {"key.pem", pair.key},
          {"ca.pem", pair.certificate}}) {
      std::ofstream(folder_ + "/new", std::ios::binary) << text;
      std::filesystem::rename(folder_ + "/new", folder_ + "/" + name);
    }
  }

  HttpServerOptions Options(bool with_authorities = false) const {
    HttpServerOptions options = Loopback();
    auto files = TlsFiles::Open({.certificate = folder_ + "/cert.pem",
                                 .key = folder_ + "/key.pem",
                                 .authorities = with_authorities ? folder_ + "/ca.pem" : ""});
    EXPECT_TRUE(files.ok()) << files.status();
    options.tls = *files;
    options.max_body_bytes = 1 << 20;
    options.max_body_bytes_in_flight = 1 << 20;
    return options;
  }

  const PemPair pair_ = MakePemPair();
  std::string folder_;
};

TEST_F(HttpTlsTest, AnswersOverEachPermittedVersion) {
  const auto server = StartServer(Options(), {TextRoute("/page", "text")});
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TlsClient client(*server, version);
    ASSERT_TRUE(client.is_connected());
    EXPECT_EQ(client.version(), version);
    client.Send(kGet);
    EXPECT_THAT(client.ReadUntil("\r\n\r\ntext"), StartsWith("HTTP/1.1 200 OK\r\n"));
    client.Send(kGetAndClose);
    EXPECT_THAT(client.ReadToEnd(), AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), EndsWith("text")));
    EXPECT_TRUE(client.has_clean_end());
  }
  EXPECT_FALSE(TlsClient(*server, TLS1_1_VERSION).is_connected());
}

// OpenSSL's own default may refuse older versions too.
TEST_F(HttpTlsTest, OlderVersionsAreRefusedWhateverTheDefault) {
  HttpTls tls(HttpTls::Side::kServer, Options().tls);
  ASSERT_TRUE(tls.Update().ok());
  EXPECT_EQ(SSL_CTX_get_min_proto_version(tls.context()->native_handle()), TLS1_2_VERSION);
}

TEST_F(HttpTlsTest, PlainTextGetsNoAnswer) {
  const auto server = StartServer(Options(), {TextRoute("/page", "text")});
  EXPECT_THAT(Ask(*server, kGetAndClose), Not(HasSubstr("HTTP")));
}

TEST_F(HttpTlsTest, BodiesAndStreamsPass) {
  std::unique_ptr<HttpResponder> held;
  Event is_held;
  Event is_gone;
  std::string body;
  const auto handler = [&](const HttpRequest& request, HttpResponder responder) {
    body = request.body;
    responder.OnDisconnect([&] { is_gone.Notify(); });
    responder.Begin({});
    held = std::make_unique<HttpResponder>(std::move(responder));
    is_held.Notify();
  };
  const auto server =
      StartServer(Options(), {{.method = "POST", .path = "/page", .handler = handler}});
  {
    TlsClient client(*server);
    client.Send(Request("POST /page", "Content-Length: 100000\r\n", std::string(100'000, 'x')));
    is_held.Wait();
    EXPECT_EQ(body, std::string(100'000, 'x'));
    EXPECT_THAT(client.ReadUntil("\r\n\r\n"), HasSubstr("chunked"));
    held->Write("event");
    EXPECT_EQ(client.ReadUntil("event\r\n"), "5\r\nevent\r\n");
    held->Write(std::string(100'000, 'y'));
    EXPECT_EQ(client.ReadUntil("y\r\n"), "186a0\r\n" + std::string(100'000, 'y') + "\r\n");
  }
  is_gone.Wait();
}

TEST_F(HttpTlsTest, ReplacedFilesServeTheNextConnection) {
  const auto server = StartServer(Options(), {TextRoute("/page", "text")});
  TlsClient before(*server);
  EXPECT_EQ(before.PeerCertificate(), pair_.certificate);

  const PemPair other = MakePemPair();
  Write(other);
  // The files are read twice a second.
  while (TlsClient(*server).PeerCertificate() != other.certificate) {
    ::poll(nullptr, 0, 20);
  }

  before.Send(kGetAndClose);
  EXPECT_THAT(before.ReadToEnd(), EndsWith("text")) << "an open connection goes on";
}

TEST_F(HttpTlsTest, WithAuthoritiesAClientNeedsACertificate) {
  const auto server = StartServer(Options(/*with_authorities=*/true), {TextRoute("/page", "text")});
  const PemPair stranger = MakePemPair();
  for (const PemPair* own : {static_cast<const PemPair*>(nullptr), &stranger}) {
    TlsClient client(*server, TLS1_3_VERSION, own);
    client.Send(kGetAndClose);
    EXPECT_THAT(client.ReadToEnd(), IsEmpty());
  }
  TlsClient client(*server, TLS1_3_VERSION, &pair_);
  client.Send(kGetAndClose);
  EXPECT_THAT(client.ReadToEnd(), EndsWith("text"));
}

TEST_F(HttpTlsTest, TheServerEndsBesideConnectionsInEachState) {
  auto server = StartServer(Options(), {TextRoute("/page", "text")});
  const HttpSocket before_handshake(*server);
  TlsClient idle(*server);
  TlsClient ended(*server);
  ended.Send(kGetAndClose);
  EXPECT_THAT(ended.ReadToEnd(), EndsWith("text"));
  server.reset();
  EXPECT_THAT(idle.ReadToEnd(), IsEmpty());
}

}  // namespace
}  // namespace quire
