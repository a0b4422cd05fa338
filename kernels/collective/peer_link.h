// PeerLink is a connection to another rank: bytes to it and bytes from it, at the same time. Ranks
// of one host move them through shared memory, and the socket is the sign that the other one
// lives; without shared memory they go through the socket, between hosts encrypted (TlsChannel).
//
// What one end sends in a call the other end receives in one call, whole.
//
// Thread safety: one caller at a time; Abort from any thread.
// Errors:        kUnavailable, reason GROUP_BROKEN, once the other end has closed or is dead, the
//                connection is broken, what came over it was changed on its way, the shared memory
//                holds what cannot be true, or Abort was called. There is no way back. A caller
//                that waits learns of an Abort of either end at once, and of the death of the other
//                process within 2 ms.
// Cost:          shared memory: a copy at the sender; at the receiver another one, or none (Merge);
//                no system call unless an end sleeps. A socket: two copies, and at least two calls;
//                encrypted, more of both (TlsChannel).
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
  // What has come of the other end's bytes, from `offset` on. Begins at a multiple of
  // kRingLineBytes in the message and in memory.
  using TakePiece = absl::FunctionRef<void(size_t offset, std::span<const std::byte> piece)>;

  // A connected stream socket, which the object owns from here on. `channel` is null where the
  // ends share no memory, `tls` where nothing is encrypted; its handshake is done.
  explicit PeerLink(int socket,
                    std::unique_ptr<SharedChannel> channel = nullptr,
                    std::unique_ptr<TlsChannel> tls = nullptr);

  // Returns when all of `out` is on its way and all of `in` has come. Either may be empty.
  absl::Status Exchange(std::span<const std::byte> out, std::span<std::byte> in);

  // Sends `data` and takes as many bytes from the other end, piece by piece in order. A piece is
  // taken when the same part of `data` is on its way: `take` may write there.
  absl::Status Merge(std::span<const std::byte> data, TakePiece take);

  // Whether the other end has closed or is dead; does not wait.
  bool has_ended() const;

  // Ends what is under way and everything after it, on both ends.
  void Abort() const;

 private:
  absl::Status ExchangeOverSocket(std::span<const std::byte> out, std::span<std::byte> in);
  // `follows`: as Merge, else as Exchange.
  absl::Status ExchangeShared(std::span<const std::byte> out,
                              size_t in_bytes,
                              bool follows,
                              TakePiece take);
  // Without waiting: how many bytes went or came, perhaps 0; none: the link has ended.
  std::optional<size_t> Send(std::span<const std::byte> bytes);
  std::optional<size_t> Receive(std::span<std::byte> bytes);
  bool has_unsent() const { return tls_ != nullptr && tls_->has_unsent(); }

  FileDescriptor socket_;
  std::unique_ptr<SharedChannel> channel_;
  std::unique_ptr<TlsChannel> tls_;
  std::vector<std::byte> received_;  // by Merge, from a socket
};

}  // namespace quire

#endif  // QUIRE_KERNELS_COLLECTIVE_PEER_LINK_H_
