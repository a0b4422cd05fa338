#include "common/base/unix_socket.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "common/base/file_descriptor.h"

#include <sys/socket.h>
#include <sys/un.h>

namespace quire {

bool IsListenedOn(const std::string& unix_path) {
  sockaddr_un where = {};
  where.sun_family = AF_UNIX;
  if (unix_path.size() >= sizeof(where.sun_path)) {
    return false;
  }
  std::copy(unix_path.begin(), unix_path.end(), where.sun_path);
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  // EAGAIN: a process listens, but its accept queue is full.
  return socket.is_open() &&
         (::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&where), sizeof(where)) == 0 ||
          errno == EAGAIN);
}

bool IsOwnUsers(int connection_fd) {
  ucred peer = {};
  socklen_t length = sizeof(peer);
  return ::getsockopt(connection_fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         (peer.uid == ::geteuid() || peer.uid == 0);
}

}  // namespace quire
