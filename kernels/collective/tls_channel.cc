#include "kernels/collective/tls_channel.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include "common/base/check.h"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

namespace quire {
namespace {

// The only cipher suite, and its number in TLS. The suite's hash, SHA-256, is the default for an
// external PSK (RFC 8446, 4.2.11).
constexpr const char* kSuite = "TLS_AES_128_GCM_SHA256";
constexpr std::array<unsigned char, 2> kSuiteNumber = {0x13, 0x01};
constexpr const char* kGroup = "X25519";
constexpr size_t kMaxRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
// Upper bound on buffered bytes. A small buffer is sent early, so the other end decrypts its
// records while this end encrypts the next ones.
constexpr size_t kMaxUnsentBytes = size_t{64} << 10;
// Index in an SSL's ex_data at which the SSL's TlsChannel is stored.
constexpr int kChannelIndex = 0;

}  // namespace

struct TlsChannel::Callbacks {
  static TlsChannel& ChannelOf(const SSL* ssl) {
    return *static_cast<TlsChannel*>(::SSL_get_ex_data(ssl, kChannelIndex));
  }

  // Returns a session with the secret as its key; null if memory is lacking. The library frees the
  // session.
  static SSL_SESSION* NewKey(SSL* ssl, const std::string& secret) {
    SSL_SESSION* key = ::SSL_SESSION_new();
    if (key == nullptr ||
        ::SSL_SESSION_set1_master_key(
            key, reinterpret_cast<const unsigned char*>(secret.data()), secret.size()) != 1 ||
        ::SSL_SESSION_set_cipher(key, ::SSL_CIPHER_find(ssl, kSuiteNumber.data())) != 1 ||
        ::SSL_SESSION_set_protocol_version(key, TLS1_3_VERSION) != 1) {
      ::SSL_SESSION_free(key);
      return nullptr;
    }
    return key;
  }

  // The library calls this function at the dialing end. A result of 0 ends the handshake.
  static int ShowIdentity(SSL* ssl,
                          const EVP_MD* /*hash*/,
                          const unsigned char** identity,
                          size_t* length,
                          SSL_SESSION** key) {
    const TlsChannel& channel = ChannelOf(ssl);
    const std::string& shown = channel.identities_.front();
    *identity = reinterpret_cast<const unsigned char*>(shown.data());
    *length = shown.size();
    *key = NewKey(ssl, channel.secret_);
    return *key == nullptr ? 0 : 1;
  }

  // The library calls this function at the accepting end. A result of 0 ends the handshake.
  static int FindIdentity(SSL* ssl,
                          const unsigned char* identity,
                          size_t length,
                          SSL_SESSION** key) {
    const TlsChannel& channel = ChannelOf(ssl);
    const std::string_view shown(reinterpret_cast<const char*>(identity), length);
    if (std::ranges::find(channel.identities_, shown) == channel.identities_.end()) {
      return 0;
    }
    *key = NewKey(ssl, channel.secret_);
    return *key == nullptr ? 0 : 1;
  }

  // Refuses every certificate, because no certificate proves that the peer has the secret.
  static int RefuseCertificate(X509_STORE_CTX* /*certificate*/, void* /*data*/) { return 0; }

  static int Write(BIO* bio, const char* bytes, int size) {
    auto& channel = *static_cast<TlsChannel*>(::BIO_get_data(bio));
    std::vector<std::byte>& unsent = channel.unsent_;
    unsent.erase(unsent.begin(),
                 unsent.begin() + static_cast<std::ptrdiff_t>(channel.num_flushed_));
    channel.num_flushed_ = 0;
    const auto* begin = reinterpret_cast<const std::byte*>(bytes);
    unsent.insert(unsent.end(), begin, begin + size);
    return size;
  }

  static int Read(BIO* bio, char* bytes, int size) {
    auto& channel = *static_cast<TlsChannel*>(::BIO_get_data(bio));
    ::BIO_clear_retry_flags(bio);
    auto wanted = static_cast<size_t>(size);
    if (!channel.is_done_) {
      wanted = std::min(wanted, kMaxHandshakeBytes - channel.num_handshake_bytes_);
      if (wanted == 0) {
        return -1;
      }
    }
    const ssize_t came = ::recv(channel.socket_, bytes, wanted, MSG_DONTWAIT);
    if (came < 0 && (errno == EAGAIN || errno == EINTR)) {
      ::BIO_set_retry_read(bio);
    }
    if (came > 0 && !channel.is_done_) {
      channel.num_handshake_bytes_ += static_cast<size_t>(came);
    }
    return static_cast<int>(came);
  }

  static long Control(BIO* /*bio*/, int command, long /*number*/, void* /*data*/) {
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }

  // Returns null if the library fails. The methods are never freed, since connections may still
  // exist when main returns.
  static const BIO_METHOD* Methods() {
    static const BIO_METHOD* const methods = [] {
      BIO_METHOD* made =
          ::BIO_meth_new(::BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "link between ranks");
      return made != nullptr && ::BIO_meth_set_write(made, Write) == 1 &&
                     ::BIO_meth_set_read(made, Read) == 1 && ::BIO_meth_set_ctrl(made, Control) == 1
                 ? made
                 : nullptr;
    }();
    return methods;
  }

  static SSL_CTX* Context() {
    static SSL_CTX* const context = MakeContext();
    return context;
  }

  static SSL_CTX* MakeContext() {
    SSL_CTX* context = ::SSL_CTX_new(::TLS_method());
    if (context == nullptr || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) != 1 ||
        ::SSL_CTX_set_ciphersuites(context, kSuite) != 1 ||
        SSL_CTX_set1_groups_list(context, kGroup) != 1 ||
        ::SSL_CTX_set_num_tickets(context, 0) != 1) {
      ::SSL_CTX_free(context);
      ::ERR_clear_error();
      return nullptr;
    }
    ::SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
    // A PSK without a key exchange would have no forward secrecy.
    ::SSL_CTX_clear_options(context, SSL_OP_ALLOW_NO_DHE_KEX | SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    // Reads a record with one system call instead of two.
    SSL_CTX_set_read_ahead(context, 1);
    ::SSL_CTX_set_cert_verify_callback(context, RefuseCertificate, nullptr);
    ::SSL_CTX_set_psk_use_session_callback(context, ShowIdentity);
    ::SSL_CTX_set_psk_find_session_callback(context, FindIdentity);
    return context;
  }
};

void TlsChannel::Free::operator()(SSL* ssl) const { ::SSL_free(ssl); }

bool TlsChannel::IsPossible() {
  return Callbacks::Context() != nullptr && Callbacks::Methods() != nullptr;
}

std::unique_ptr<TlsChannel> TlsChannel::Dial(int socket, const Settings& settings) {
  return Create(socket, settings, /*dials=*/true);
}

std::unique_ptr<TlsChannel> TlsChannel::Accept(int socket, const Settings& settings) {
  return Create(socket, settings, /*dials=*/false);
}

TlsChannel::TlsChannel(int socket, const Settings& settings)
    : socket_(socket),
      identities_(settings.identities),
      max_records_per_key_(settings.max_records_per_key),
      secret_(settings.secret) {}

TlsChannel::~TlsChannel() = default;

std::unique_ptr<TlsChannel> TlsChannel::Create(int socket, const Settings& settings, bool dials) {
  QUIRE_CHECK(IsPossible());
  std::unique_ptr<TlsChannel> channel(new TlsChannel(socket, settings));
  channel->ssl_.reset(::SSL_new(Callbacks::Context()));
  BIO* bio = ::BIO_new(Callbacks::Methods());
  SSL* ssl = channel->ssl_.get();
  // SSL_new and BIO_new fail only for lack of memory.
  QUIRE_CHECK(ssl != nullptr && bio != nullptr);
  ::BIO_set_data(bio, channel.get());
  ::BIO_set_init(bio, 1);
  ::SSL_set_bio(ssl, bio, bio);
  QUIRE_CHECK(::SSL_set_ex_data(ssl, kChannelIndex, channel.get()) == 1);
  if (dials) {
    ::SSL_set_connect_state(ssl);
    // Makes the library call RefuseCertificate; else the dialing end would accept any certificate.
    ::SSL_set_verify(ssl, SSL_VERIFY_PEER, nullptr);
  } else {
    ::SSL_set_accept_state(ssl);
  }
  return channel;
}

TlsChannel::Progress TlsChannel::ShakeHands() {
  if (is_over_) {
    return Progress::kFailed;
  }
  ::ERR_clear_error();
  const int done = ::SSL_do_handshake(ssl_.get());
  const bool may_go_on = done == 1 || ::SSL_get_error(ssl_.get(), done) == SSL_ERROR_WANT_READ;
  const bool is_right = done != 1 || has_shown_secret();
  // Flushes even after a failure, so that the other end gets the alert.
  is_over_ = !Flush() || !may_go_on || !is_right;
  if (is_over_) {
    return Progress::kFailed;
  }
  if (done != 1 || has_unsent()) {
    return Progress::kGoesOn;
  }
  is_done_ = true;
  ::OPENSSL_cleanse(secret_.data(), secret_.size());
  return Progress::kDone;
}

// At the accepting end, the result becomes true when this end has verified the PSK binder, a MAC
// with the secret (RFC 8446, 4.2.11.2). At the dialing end, it becomes true when the other end has
// chosen the PSK: without the secret, the other end could not continue the handshake.
bool TlsChannel::has_shown_secret() const { return ::SSL_session_reused(ssl_.get()) == 1; }

std::optional<size_t> TlsChannel::Send(std::span<const std::byte> bytes) {
  size_t num_taken = 0;
  while (!is_over_ && num_taken < bytes.size() && num_unsent() < kMaxUnsentBytes) {
    const auto record =
        bytes.subspan(num_taken, std::min(kMaxRecordBytes, bytes.size() - num_taken));
    is_over_ = !SendRecord(record);
    num_taken += record.size();
  }
  is_over_ = is_over_ || !Flush();
  return is_over_ ? std::nullopt : std::optional(num_taken);
}

bool TlsChannel::SendRecord(std::span<const std::byte> bytes) {
  if (num_records_ == max_records_per_key_ && !ChangeKey()) {
    return false;
  }
  ++num_records_;
  ::ERR_clear_error();
  size_t num_written = 0;
  return ::SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &num_written) == 1;
}

// The library sends the key update with the next record.
bool TlsChannel::ChangeKey() {
  num_records_ = 0;
  ++num_key_updates_;
  return ::SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1;
}

std::optional<size_t> TlsChannel::Receive(std::span<std::byte> bytes) {
  if (is_over_) {
    return std::nullopt;
  }
  if (bytes.empty()) {
    return 0;
  }
  ::ERR_clear_error();
  size_t num_came = 0;
  const int done = ::SSL_read_ex(ssl_.get(), bytes.data(), bytes.size(), &num_came);
  is_over_ = done != 1 && ::SSL_get_error(ssl_.get(), done) != SSL_ERROR_WANT_READ;
  return is_over_ ? std::nullopt : std::optional(num_came);
}

bool TlsChannel::Flush() {
  while (has_unsent()) {
    const ssize_t sent =
        ::send(socket_, &unsent_[num_flushed_], num_unsent(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      return errno == EAGAIN || errno == EINTR;
    }
    num_flushed_ += static_cast<size_t>(sent);
  }
  unsent_.clear();
  num_flushed_ = 0;
  return true;
}

bool AreEqualSecrets(std::string_view first, std::string_view second) {
  return first.size() == second.size() &&
         ::CRYPTO_memcmp(first.data(), second.data(), first.size()) == 0;
}

}  // namespace quire
