// IsListenedOn distinguishes a live Unix socket from a stale file, which a dead process left.
// IsOwnUsers tells whether a client of a Unix socket may command this process.
//
// Thread safety: any thread.
#ifndef QUIRE_COMMON_BASE_UNIX_SOCKET_H_
#define QUIRE_COMMON_BASE_UNIX_SOCKET_H_

#include <string>

namespace quire {

// Returns true if a process listens at the path, even a stopped process (SIGSTOP). Returns false if
// the path is too long for a Unix socket.
bool IsListenedOn(const std::string& unix_path);

// Returns true if the client of the connection runs as this process's user, or as root, which may
// do everything anyway.
bool IsOwnUsers(int connection_fd);

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_UNIX_SOCKET_H_
