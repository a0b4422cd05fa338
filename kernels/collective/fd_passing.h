// SendWithFd and ReceiveWithFd move bytes over a connected stream socket. Over a Unix socket they
// can move an open file with the bytes.
//
// Thread safety: any thread; one caller at a time for each socket and direction.
// Source:        unix(7), SCM_RIGHTS.
#ifndef QUIRE_KERNELS_COLLECTIVE_FD_PASSING_H_
#define QUIRE_KERNELS_COLLECTIVE_FD_PASSING_H_

#include <cstddef>
#include <span>

#include "common/base/file_descriptor.h"

#include <sys/types.h>

namespace quire {

// Sends as send(2) does, but never waits. Passes `fd` with the first byte, unless `fd` is -1.
ssize_t SendWithFd(int socket, std::span<const std::byte> bytes, int fd);

// Receives as recv(2) does, but never waits. A received file replaces the file in `*fd`. If several
// files come with the bytes, the first one is kept and the others are closed.
ssize_t ReceiveWithFd(int socket, std::span<std::byte> bytes, FileDescriptor* fd);

}  // namespace quire

#endif  // QUIRE_KERNELS_COLLECTIVE_FD_PASSING_H_
