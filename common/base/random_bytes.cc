#include "common/base/random_bytes.h"

#include "common/base/check.h"

#include <sys/random.h>

namespace quire {

std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  // getrandom(2) of up to 256 bytes is never interrupted once the random source is ready.
  QUIRE_CHECK_EQ(getrandom(bytes.data(), count, 0), static_cast<ssize_t>(count));
  return bytes;
}

}  // namespace quire
