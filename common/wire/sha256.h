// SHA-256, by OpenSSL.
//
// Thread safety: a free function, safe from any thread.
#ifndef QUIRE_COMMON_WIRE_SHA256_H_
#define QUIRE_COMMON_WIRE_SHA256_H_

#include <array>
#include <cstdint>
#include <string_view>

namespace quire {

std::array<uint8_t, 32> Sha256(std::string_view bytes);

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_SHA256_H_
