#include "common/wire/credentials.h"

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include "common/base/mutex.h"

namespace quire {
namespace {

// The library's own watcher of files (FileWatcherCertificateProvider) takes a key that does not
// belong to the certificate, and then serves nobody. Its interface in C asks for new files at each
// connection and goes on with the old ones where there are none.
class TlsServerCredentials : public grpc::ServerCredentials {
 public:
  explicit TlsServerCredentials(std::shared_ptr<TlsFiles> files) : files_(std::move(files)) {
    const auto request = files_->has_authorities()
                             ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                             : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
    credentials_ = ::grpc_ssl_server_credentials_create_with_options(
        ::grpc_ssl_server_credentials_create_options_using_config_fetcher(request, Fetch, this));
  }
  ~TlsServerCredentials() override { ::grpc_server_credentials_release(credentials_); }
  TlsServerCredentials(const TlsServerCredentials&) = delete;
  TlsServerCredentials& operator=(const TlsServerCredentials&) = delete;

  void SetAuthMetadataProcessor(
      const std::shared_ptr<grpc::AuthMetadataProcessor>& /*processor*/) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return ::grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<TlsServerCredentials*>(self)->FetchInto(config);
  }

  grpc_ssl_certificate_config_reload_status FetchInto(grpc_ssl_server_certificate_config** config) {
    TlsTexts texts = files_->Get();
    const MutexLock lock(mutex_);
    if (texts == in_use_) {
      return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    }
    in_use_ = std::move(texts);
    const grpc_ssl_pem_key_cert_pair pair = {.private_key = in_use_.key.c_str(),
                                             .cert_chain = in_use_.certificate.c_str()};
    // The library wants authorities also where it asks nobody for a certificate.
    const std::string& authorities =
        files_->has_authorities() ? in_use_.authorities : in_use_.certificate;
    *config = ::grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const std::shared_ptr<TlsFiles> files_;
  Mutex mutex_;
  TlsTexts in_use_ ABSL_GUARDED_BY(mutex_);
  grpc_server_credentials* credentials_ = nullptr;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(std::shared_ptr<TlsFiles> files) {
  if (files == nullptr) {
    return grpc::InsecureServerCredentials();
  }
  return std::make_shared<TlsServerCredentials>(std::move(files));
}

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(TlsFiles* files) {
  if (files == nullptr) {
    return grpc::InsecureChannelCredentials();
  }
  const TlsTexts texts = files->Get();
  return grpc::SslCredentials({.pem_root_certs = texts.authorities,
                               .pem_private_key = texts.key,
                               .pem_cert_chain = texts.certificate});
}

}  // namespace quire
