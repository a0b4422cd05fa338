// PeerLink is a duplex connection to another rank. Ranks of one host move bytes through shared
// memory (SharedChannel); their socket only shows whether the other process lives. Ranks without
// shared memory move bytes through the socket, encrypted between hosts (TlsChannel).
//
// REQUIRES: both ends make matching calls in the same order. A call receives exactly the bytes that
//           the matching call of the other end sends.
//
// Thread safety: one caller at a time; Abort from any thread.
// Errors:        kUnavailable, reason GROUP_BROKEN, in each of these cases: the other end has
//                closed or is dead; the connection is broken; received bytes were altered on the
//                way; the shared memory holds an impossible counter; Abort was called. The link
//                stays broken. A waiting caller gets the error at once if either end calls Abort,
//                and within 3 ms if the other process dies.
// Cost:          shared memory: one copy at the sender; one at the receiver, but none in Merge; no
//                system call unless an end sleeps. A socket: two copies, and at least two system
//                calls. Encryption needs more copies and calls (TlsChannel).
#ifndef QUIRE_KERNELS_COLLECTIVE_PEER_LINK_H_
#define QUIRE_KERNELS_COLLECTIVE_PEER_LINK_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

#include "common/base/file_descriptor.h"
#include "kernels/collective/shared_channel.h"
#include "kernels/collective/tls_channel.h"

namespace quire {

class PeerLink {
 public:
  // Takes a piece of the other end's message. The piece begins at byte `offset` of the message, a
  // multiple of kRingLineBytes. In shared memory the piece's address is such a multiple too.
  using TakePiece = absl::FunctionRef<void(size_t offset, std::span<const std::byte> piece)>;

  // Takes ownership of a connected stream socket. `channel` is null if the ends share no memory,
  // and `tls` is null if nothing is encrypted. REQUIRES: the handshake of `tls` is done.
  explicit PeerLink(int socket,
                    std::unique_ptr<SharedChannel> channel = nullptr,
                    std::unique_ptr<TlsChannel> tls = nullptr);

  // Sends all of `out` and fills `in` with bytes of the other end. Either may be empty.
  absl::Status Exchange(std::span<const std::byte> out, std::span<std::byte> in);

  // Sends `data` and receives the same number of bytes, piece by piece in order. `take` gets a
  // piece only after the same part of `data` was sent, so `take` may overwrite that part.
  absl::Status Merge(std::span<const std::byte> data, TakePiece take);

  // Returns whether the other end has closed or is dead. Does not wait.
  bool has_ended() const;

  // Fails the running call and all later ones, at both ends.
  void Abort() const;

 private:
  absl::Status ExchangeOverSocket(std::span<const std::byte> out, std::span<std::byte> in);
  // If `follows`, `take` gets a piece only after the same part of `out` was sent, as in Merge.
  absl::Status ExchangeShared(std::span<const std::byte> out,
                              size_t in_bytes,
                              bool follows,
                              TakePiece take);
  // Send and Receive do not wait. They return the number of bytes moved, perhaps 0, or nullopt if
  // the link has ended.
  std::optional<size_t> Send(std::span<const std::byte> bytes);
  std::optional<size_t> Receive(std::span<std::byte> bytes);
  bool has_unsent() const { return tls_ != nullptr && tls_->has_unsent(); }

  FileDescriptor socket_;
  std::unique_ptr<SharedChannel> channel_;
  std::unique_ptr<TlsChannel> tls_;
  std::vector<std::byte> received_;  // buffer of Merge over a socket
};

}  // namespace quire

#endif  // QUIRE_KERNELS_COLLECTIVE_PEER_LINK_H_
