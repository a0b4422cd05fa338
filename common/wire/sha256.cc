#include "common/wire/sha256.h"

#include <openssl/sha.h>

namespace quire {

std::array<uint8_t, 32> Sha256(std::string_view bytes) {
  std::array<uint8_t, 32> hash = {};
  ::SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), hash.data());
  return hash;
}

}  // namespace quire
