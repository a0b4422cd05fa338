// TlsChannel encrypts the bytes between two ranks over a network. It proves to each end that the
// other end has the secret. It uses TLS 1.3 with AES-128-GCM and only a pre-shared key (PSK). Each
// connection has a fresh X25519 exchange. So if the secret leaks later, recorded bytes still cannot
// be decrypted. Certificates are refused; there are no tickets, no early data, no renegotiation.
//
// The dialing end shows an identity in plain text. The identity names both ranks and the epoch. So
// a rank is connected neither to itself nor to a rank of another epoch (RFC 9257, 4). All ranks
// have the same secret: they trust each other, and prove only that they belong to the group.
//
// No function waits. Bytes that the socket does not accept stay in a buffer. TLS never waits for
// that buffer to become empty, not even to change keys; else two ends that only send could
// deadlock. The caller owns the socket, and may poll it, peek at its state and shut it down from
// any thread.
//
// A closing end sends no close_notify. Ranks know how many bytes are to come. If a connection
// closes before all bytes have come, the ranks treat the link as broken. So an attacker who cuts a
// connection can only break the link.
//
// Thread safety: one caller at a time.
// Errors:        a call fails if the other end lacks the secret, if it has closed, or if received
//                bytes were altered on the way. A failure is final: the caller must close the
//                socket.
// Cost:          a handshake takes one round trip and two X25519 operations at each end; the
//                accepting end refuses a peer without the secret before these operations. Each byte
//                costs the cipher and up to three copies at each end. A record of 16 KiB takes 22
//                more bytes on the wire. About 100 KiB of memory; half of that before the peer
//                proves that it has the secret.
// Source:        RFC 8446, 4.2.11 (PSK), 5.5 (limits on keys); RFC 9257 (external PSKs).
#ifndef QUIRE_KERNELS_COLLECTIVE_TLS_CHANNEL_H_
#define QUIRE_KERNELS_COLLECTIVE_TLS_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <openssl/types.h>

namespace quire {

class TlsChannel {
 public:
  // Upper bound on records sent with one key. RFC 8446 allows 2^24.5 full records with AES-GCM.
  static constexpr int64_t kMaxRecordsPerKey = int64_t{1} << 20;
  // Upper bound on the handshake bytes that an end reads: ten times as many as a rank sends.
  static constexpr size_t kMaxHandshakeBytes = size_t{4} << 10;

  struct Settings {
    std::string_view secret;
    // For Dial, the one identity that this end shows. For Accept, all identities that this end
    // accepts.
    std::vector<std::string> identities;
    int64_t max_records_per_key = kMaxRecordsPerKey;
  };

  enum class Progress : uint8_t { kGoesOn, kDone, kFailed };

  // Returns whether the TLS library offers TLS 1.3 with AES-128-GCM and X25519. The library's
  // configuration may exclude them.
  static bool IsPossible();
  // Makes one end of a channel. If `socket` could not be connected, ShakeHands fails. REQUIRES:
  // `socket` stays open while the object is used; IsPossible().
  static std::unique_ptr<TlsChannel> Dial(int socket, const Settings& settings);
  static std::unique_ptr<TlsChannel> Accept(int socket, const Settings& settings);
  ~TlsChannel();
  TlsChannel(const TlsChannel&) = delete;
  TlsChannel& operator=(const TlsChannel&) = delete;

  // Continues the handshake with the bytes received so far. After kGoesOn, call it again when more
  // bytes arrive.
  Progress ShakeHands();
  // Returns whether the other end seems to have the secret. Until the handshake is done, the other
  // end may be replaying messages of an end that has the secret.
  bool has_shown_secret() const;

  // Returns how many of the bytes this object accepted, perhaps 0, or nullopt after a failure. When
  // has_unsent() is false, all accepted bytes have been sent. REQUIRES, also for Receive:
  // ShakeHands has returned kDone.
  std::optional<size_t> Send(std::span<const std::byte> bytes);
  bool has_unsent() const { return num_unsent() > 0; }
  // Returns how many bytes came, perhaps 0, or nullopt after a failure.
  std::optional<size_t> Receive(std::span<std::byte> bytes);

  // Returns how often this end has changed the key with which it sends.
  int64_t num_key_updates() const { return num_key_updates_; }

 private:
  // Functions that the TLS library calls.
  struct Callbacks;
  struct Free {
    void operator()(SSL* ssl) const;
  };

  TlsChannel(int socket, const Settings& settings);
  static std::unique_ptr<TlsChannel> Create(int socket, const Settings& settings, bool dials);

  bool SendRecord(std::span<const std::byte> bytes);
  bool ChangeKey();
  // Sends as much of unsent_ as the socket accepts. Returns false if the socket is broken.
  bool Flush();
  size_t num_unsent() const { return unsent_.size() - num_flushed_; }

  const int socket_;
  const std::vector<std::string> identities_;
  const int64_t max_records_per_key_;
  std::string secret_;  // overwritten when the handshake is done
  std::unique_ptr<SSL, Free> ssl_;
  bool is_done_ = false;
  bool is_over_ = false;
  size_t num_handshake_bytes_ = 0;  // handshake bytes received so far
  std::vector<std::byte> unsent_;   // bytes still to send, from num_flushed_ on
  size_t num_flushed_ = 0;
  int64_t num_records_ = 0;  // records sent with the present key
  int64_t num_key_updates_ = 0;
};

// Whether two secrets are equal. The comparison's time does not depend on where they differ.
bool AreEqualSecrets(std::string_view first, std::string_view second);

}  // namespace quire

#endif  // QUIRE_KERNELS_COLLECTIVE_TLS_CHANNEL_H_
