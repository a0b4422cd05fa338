#include "common/base/random_bytes.h"

#include "common/base/check.h"

#include <sys/random.h>

namespace quire {

std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  // Up to 256 bytes are never interrupted once the device is ready.
  QUIRE_CHECK_EQ(getrandom(bytes.data(), count, 0), static_cast<ssize_t>(count));
  return bytes;
}

}  // namespace quire
