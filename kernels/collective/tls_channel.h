// TlsChannel encrypts what goes between two ranks over a network, and shows each end that the other
// one has the secret: TLS 1.3 by a pre-shared key (PSK) and nothing else, with AES-128-GCM and a
// fresh X25519 exchange for each connection, so that whoever learns the secret later cannot read
// what was recorded. There are no certificates, and one that is shown is refused; no tickets, no
// early data, no renegotiation.
//
// The end that dials shows an identity, which anybody can read. It names who dials whom and when,
// so that a rank is not led to itself or into another epoch (RFC 9257, 4). All ranks have the
// same secret: they trust each other, and prove only that they are of the group.
//
// Nothing here waits. What the socket does not take stays in a buffer, and TLS never waits for it,
// not even to change keys: two ends that only sent could wait for each other otherwise. The socket
// is the caller's, who may poll it, peek at its state and shut it down from any thread.
//
// An end that goes says nothing (no close_notify): ranks know how many bytes are to come, and take
// each end before that for a broken link. So cutting a connection is no more than breaking it.
//
// Thread safety: one caller at a time.
// Errors:        whatever does not go on is over for ever: the other end has no such secret, has
//                closed, or sent what was changed on its way. The caller closes the socket.
// Cost:          one round trip and two operations of X25519 at each end; the end that is dialled
//                refuses whoever lacks the secret before them. Then, of each byte, the cipher and
//                up to three copies at each end; 22 bytes for each 16 KiB. About 100 KiB of memory,
//                of which a stranger has half.
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
  // AES-GCM may have 2^24.5 full records under one key.
  static constexpr int64_t kMaxRecordsPerKey = int64_t{1} << 20;
  // From an end that has not shown the secret yet. Ours send a tenth of it.
  static constexpr size_t kMaxHandshakeBytes = size_t{4} << 10;

  struct Settings {
    std::string_view secret;
    // Of the end that dials: the one it shows. Of the other end: those that may come.
    std::vector<std::string> identities;
    int64_t max_records_per_key = kMaxRecordsPerKey;
  };

  enum class Progress : uint8_t { kGoesOn, kDone, kFailed };

  // Whether the TLS library has all this; it may be configured not to.
  static bool IsPossible();
  // `socket` is connected, and open for as long as the object is used. REQUIRES: IsPossible.
  static std::unique_ptr<TlsChannel> Dial(int socket, const Settings& settings);
  static std::unique_ptr<TlsChannel> Accept(int socket, const Settings& settings);
  ~TlsChannel();
  TlsChannel(const TlsChannel&) = delete;
  TlsChannel& operator=(const TlsChannel&) = delete;

  // As far as it goes with what has come; to be called again when more has.
  Progress ShakeHands();
  // Whether the other end has the secret, or repeats what one said that has it. True before the
  // handshake is done.
  bool has_shown_secret() const;

  // REQUIRES, of what follows: ShakeHands has returned kDone.
  // How many bytes were taken, perhaps 0. They are on their way once has_unsent says no.
  std::optional<size_t> Send(std::span<const std::byte> bytes);
  bool has_unsent() const { return num_unsent() > 0; }
  // How many bytes came, 0 when there are none yet.
  std::optional<size_t> Receive(std::span<std::byte> bytes);

  // How often this end has changed the key that it sends with.
  int64_t num_key_updates() const { return num_key_updates_; }

 private:
  // What the TLS library calls.
  struct Callbacks;
  struct Free {
    void operator()(SSL* ssl) const;
  };

  TlsChannel(int socket, const Settings& settings);
  static std::unique_ptr<TlsChannel> Create(int socket, const Settings& settings, bool dials);

  bool SendRecord(std::span<const std::byte> bytes);
  bool ChangeKey();
  // What the socket takes; false: it takes nothing any more.
  bool Flush();
  size_t num_unsent() const { return unsent_.size() - num_flushed_; }

  const int socket_;
  const std::vector<std::string> identities_;
  const int64_t max_records_per_key_;
  std::string secret_;  // until the handshake is done
  std::unique_ptr<SSL, Free> ssl_;
  bool is_done_ = false;
  bool is_over_ = false;
  size_t num_handshake_bytes_ = 0;  // that have come
  std::vector<std::byte> unsent_;   // behind num_flushed_
  size_t num_flushed_ = 0;
  int64_t num_records_ = 0;  // under the present key
  int64_t num_key_updates_ = 0;
};

// Whether two secrets are the same, in a time that does not tell where they differ.
bool AreEqualSecrets(std::string_view first, std::string_view second);

}  // namespace quire

#endif  // QUIRE_KERNELS_COLLECTIVE_TLS_CHANNEL_H_
