// PeerLink is a connection to another rank: bytes to it and bytes from it, at the same time.
//
// Thread safety: one caller at a time; Abort from any thread.
// Errors:        kUnavailable, reason GROUP_BROKEN, once the other end has closed, the connection
// is
//                broken, or Abort was called. There is no way back.
#ifndef QUIRE_KERNELS_COLLECTIVE_PEER_LINK_H_
#define QUIRE_KERNELS_COLLECTIVE_PEER_LINK_H_

#include <cstddef>
#include <span>

#include "absl/status/status.h"

namespace quire {

class PeerLink {
 public:
  // A connected stream socket, which the object owns from here on.
  explicit PeerLink(int socket);
  ~PeerLink();
  PeerLink(PeerLink&& other) noexcept;
  PeerLink& operator=(PeerLink&&) = delete;

  // Returns when all of `out` is on its way and all of `in` has come. Either may be empty.
  absl::Status Exchange(std::span<const std::byte> out, std::span<std::byte> in) const;

  // Ends what is under way and everything after it, on both ends.
  void Abort() const;

 private:
  int socket_;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_COLLECTIVE_PEER_LINK_H_
