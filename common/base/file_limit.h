// This process's limit on open files, sockets included (RLIMIT_NOFILE).
//
// Thread safety: RaiseFileLimit before other threads start; FileLimit from any thread.
#ifndef QUIRE_COMMON_BASE_FILE_LIMIT_H_
#define QUIRE_COMMON_BASE_FILE_LIMIT_H_

namespace quire {

// Raises the soft limit to the hard limit. The usual soft limit of 1,024 protects programs that use
// select(2). A server does not use select and needs more files, since each client has a socket.
void RaiseFileLimit();

int FileLimit();

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_FILE_LIMIT_H_
