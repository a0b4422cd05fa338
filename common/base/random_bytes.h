// RandomBytes returns cryptographically random bytes, for secrets and unique names.
//
// Thread safety: any thread.
// Cost:          a system call, so not for thousands of random numbers.
#ifndef QUIRE_COMMON_BASE_RANDOM_BYTES_H_
#define QUIRE_COMMON_BASE_RANDOM_BYTES_H_

#include <cstddef>
#include <string>

namespace quire {

// REQUIRES: count is at most 256.
std::string RandomBytes(size_t count);

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_RANDOM_BYTES_H_
