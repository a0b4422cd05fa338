// RankConnection is a connection between two ranks that is no link yet: over TCP there is a TLS
// handshake to come, and both have to say who they are. Nothing here waits.
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
  std::unique_ptr<TlsChannel> tls;  // of TCP

  void Close();

  // Without TLS it is done at once. Nothing: it may still be; false: it will not.
  std::optional<bool> ShakeHands() const;

  // What follows goes through TLS once that is done. Whether the rest of what is expected has come,
  // and perhaps a file with it (fd_passing.h); as above.
  std::optional<bool> ReadRest(std::span<std::byte> expected,
                               size_t* num_read,
                               FileDescriptor* memory) const;
  // REQUIRES: it fits the empty buffer of a new connection. False where it does not, or the
  // connection is broken.
  bool SendAll(std::span<const std::byte> bytes, const FileDescriptor& memory = {}) const;

 private:
  // How many bytes came, 0 when there are none yet; nothing: there will be none.
  std::optional<size_t> Receive(std::span<std::byte> bytes, FileDescriptor* memory) const;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_COLLECTIVE_RANK_CONNECTION_H_
