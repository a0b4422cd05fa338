// RankConnection is a connection between two ranks before it becomes a PeerLink. Over TCP the ranks
// first do a TLS handshake. Then the rank that dialed sends its first message, the hello (see
// PeerListener). No function waits.
//
// Thread safety: one caller at a time.
#ifndef QUIRE_KERNELS_COLLECTIVE_RANK_CONNECTION_H_
#define QUIRE_KERNELS_COLLECTIVE_RANK_CONNECTION_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "common/base/file_descriptor.h"
#include "kernels/collective/tls_channel.h"

namespace quire {

struct RankConnection {
  FileDescriptor socket;
  std::unique_ptr<TlsChannel> tls;  // null if the socket is not TCP

  void Close();

  // Returns whether the handshake succeeded, or nullopt while it is under way. Without TLS, returns
  // true.
  std::optional<bool> ShakeHands() const;

  // Fills the rest of `expected`. Earlier calls have filled its first *num_read bytes. If a file
  // comes with the bytes, stores it in *memory (fd_passing.h). Returns true when all bytes are
  // read, false if the connection has ended, nullopt while bytes are missing. REQUIRES, also for
  // SendAll: the handshake is done.
  std::optional<bool> ReadRest(std::span<std::byte> expected,
                               size_t* num_read,
                               FileDescriptor* memory) const;
  // Sends all bytes. Without TLS, also passes `memory` if it is open. Returns false if the
  // connection is broken or the socket's buffer has too little room. A short message always fits
  // into the empty buffer of a new socket.
  bool SendAll(std::span<const std::byte> bytes, const FileDescriptor& memory = {}) const;

 private:
  // Returns how many bytes came, perhaps 0, or nullopt if the connection has ended.
  std::optional<size_t> Receive(std::span<std::byte> bytes, FileDescriptor* memory) const;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_COLLECTIVE_RANK_CONNECTION_H_
