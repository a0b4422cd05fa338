// SendWithFd and ReceiveWithFd move bytes over a connected stream socket, and with them an open
// file where both ends are of one host (a Unix socket).
//
// Thread safety: free functions; one caller at a time for each socket and direction.
// Source:        unix(7), SCM_RIGHTS.
#ifndef QUIRE_KERNELS_COLLECTIVE_FD_PASSING_H_
#define QUIRE_KERNELS_COLLECTIVE_FD_PASSING_H_

#include <cstddef>
#include <span>

#include "common/base/file_descriptor.h"

#include <sys/types.h>

namespace quire {

// As send(2) without waiting. `fd` goes along with the first byte; -1: none does.
ssize_t SendWithFd(int socket, std::span<const std::byte> bytes, int fd);

// As recv(2) without waiting. A file that came along takes the place of what `fd` had; files beyond
// the first of a call are closed.
ssize_t ReceiveWithFd(int socket, std::span<std::byte> bytes, FileDescriptor* fd);

}  // namespace quire

#endif  // QUIRE_KERNELS_COLLECTIVE_FD_PASSING_H_
