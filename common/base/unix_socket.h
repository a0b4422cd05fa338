// Whether somebody listens on a Unix socket: its file stays when its process dies.
//
// Thread safety: a free function.
#ifndef QUIRE_COMMON_BASE_UNIX_SOCKET_H_
#define QUIRE_COMMON_BASE_UNIX_SOCKET_H_

#include <string>

namespace quire {

// A process that is stopped still listens. False for a path that is too long.
bool IsListenedOn(const std::string& unix_path);

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_UNIX_SOCKET_H_
