// How many files, sockets among them, this process may have open at a time (RLIMIT_NOFILE).
//
// Thread safety: RaiseFileLimit before other threads start; FileLimit from any thread.
#ifndef QUIRE_COMMON_BASE_FILE_LIMIT_H_
#define QUIRE_COMMON_BASE_FILE_LIMIT_H_

namespace quire {

// Raises the limit as far as the system lets everybody: the usual 1,024 is for programs that use
// select, and a server has a socket for each client.
void RaiseFileLimit();

int FileLimit();

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_FILE_LIMIT_H_
