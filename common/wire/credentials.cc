#include "common/wire/credentials.h"

#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/wire/api_key.h"

namespace quire {
namespace {

// Bounds the life of TLS session tickets, with which a client could reconnect after its certificate
// has expired. A ticket is valid only under the TLS configuration that issued it, so the
// configuration is renewed at this interval.
constexpr int64_t kTicketLifeNs = 10 * kNanosPerSecond;

std::string_view TextOf(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

// Uses gRPC's C API for two reasons. The C++ class for plain text has no hook to check calls. For
// TLS, the C++ file watcher (FileWatcherCertificateProvider) accepts a key that does not belong to
// the certificate, and then every handshake fails. The C API calls Fetch at each connection
// instead.
class PortCredentials : public grpc::ServerCredentials {
 public:
  PortCredentials(std::shared_ptr<TlsFiles> files, CallCheck check)
      : files_(std::move(files)), check_(std::move(check)) {
    credentials_ =
        files_ == nullptr ? ::grpc_insecure_server_credentials_create() : MakeTlsCredentials();
    if (check_ != nullptr) {
      ::grpc_server_credentials_set_auth_metadata_processor(
          credentials_, {.process = Check, .destroy = nullptr, .state = this});
    }
  }
  ~PortCredentials() override { ::grpc_server_credentials_release(credentials_); }
  PortCredentials(const PortCredentials&) = delete;
  PortCredentials& operator=(const PortCredentials&) = delete;

  void SetAuthMetadataProcessor(
      const std::shared_ptr<grpc::AuthMetadataProcessor>& /*processor*/) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return ::grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  grpc_server_credentials* MakeTlsCredentials() {
    const auto request = files_->has_authorities()
                             ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                             : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
    return ::grpc_ssl_server_credentials_create_with_options(
        ::grpc_ssl_server_credentials_create_options_using_config_fetcher(request, Fetch, this));
  }

  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<PortCredentials*>(self)->FetchInto(config);
  }

  grpc_ssl_certificate_config_reload_status FetchInto(grpc_ssl_server_certificate_config** config) {
    TlsTexts texts = files_->Get();
    const MutexLock lock(mutex_);
    const Instant now = SteadyNow();
    if (texts == in_use_ && now < renew_at_) {
      return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    }
    in_use_ = std::move(texts);
    renew_at_ = now + kTicketLifeNs;
    const grpc_ssl_pem_key_cert_pair pair = {.private_key = in_use_.key.c_str(),
                                             .cert_chain = in_use_.certificate.c_str()};
    // gRPC requires authorities even if clients need no certificate. The port's own certificate
    // then serves as one.
    const std::string& authorities =
        files_->has_authorities() ? in_use_.authorities : in_use_.certificate;
    *config = ::grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  static void Check(void* self,
                    grpc_auth_context* /*context*/,
                    const grpc_metadata* metadata,
                    size_t count,
                    grpc_process_auth_metadata_done_cb done,
                    void* call) {
    std::string_view path;
    std::string_view authorization;
    int num_authorizations = 0;
    for (size_t i = 0; i < count; ++i) {
      const std::string_view name = TextOf(metadata[i].key);
      if (name == ":path") {
        path = TextOf(metadata[i].value);
      } else if (name == kAuthorization) {
        authorization = TextOf(metadata[i].value);
        ++num_authorizations;
      }
    }
    const absl::Status status = static_cast<PortCredentials*>(self)->check_(
        path, num_authorizations == 1 ? authorization : std::string_view());
    done(call,
         /*consumed_md=*/nullptr,
         /*num_consumed_md=*/0,
         /*response_md=*/nullptr,
         /*num_response_md=*/0,
         static_cast<grpc_status_code>(status.code()),
         std::string(status.message()).c_str());
  }

  const std::shared_ptr<TlsFiles> files_;  // null: plain text
  const CallCheck check_;                  // null: no check
  Mutex mutex_;
  TlsTexts in_use_ ABSL_GUARDED_BY(mutex_);
  Instant renew_at_ ABSL_GUARDED_BY(mutex_) = 0;
  grpc_server_credentials* credentials_ = nullptr;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(std::shared_ptr<TlsFiles> files,
                                                               CallCheck check) {
  if (files == nullptr && check == nullptr) {
    return grpc::InsecureServerCredentials();
  }
  return std::make_shared<PortCredentials>(std::move(files), std::move(check));
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
