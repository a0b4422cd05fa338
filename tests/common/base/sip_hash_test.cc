#include "common/base/sip_hash.h"

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

struct Vector {
  size_t num_bytes;
  std::string expected;  // in order of bytes
};

// Input 00 01 02 ..., key 00 01 ... 0f: what openssl gives for
//   openssl mac -macopt hexkey:000102030405060708090a0b0c0d0e0f -macopt size:16 -in FILE SIPHASH
const std::vector<Vector> kVectors = {
    {0, "a3817f04ba25a8e66df67214c7550293"},  {1, "da87c1d86b99af44347659119b22fc45"},
    {2, "8177228da4a45dc7fca38bdef60affe4"},  {3, "9c70b60c5267a94e5f33b6b02985ed51"},
    {4, "f88164c12d9c8faf7d0f6e7c7bcd5579"},  {5, "1368875980776f8854527a07690e9627"},
    {6, "14eeca338b208613485ea0308fd7a15e"},  {7, "a1f1ebbed8dbc153c0b84aa61ff08239"},
    {8, "3b62a9ba6258f5610f83e264f31497b4"},  {9, "264499060ad9baabc47f8b02bb6d71ed"},
    {10, "00110dc378146956c95447d3f3d0fbba"}, {11, "0151c568386b6677a2b4dc6f81e5dc18"},
    {12, "d626b266905ef35882634df68532c125"}, {13, "9869e247e9c08b10d029934fc4b952f7"},
    {14, "31fcefac66d7de9c7ec7485fe4494902"}, {15, "5493e99933b0a8117e08ec0f97cfc3d9"},
    {16, "6ee2a4ca67b054bbfd3315bf85230577"}, {17, "473d06e8738db89854c066c47ae47740"},
    {31, "2939b0183223fafc1723de4f52c43d35"}, {32, "7c3956ca5eeafc3e363e9d556546eb68"},
    {33, "77c6077146f01c32b6b69d5f4ea9ffcf"}, {63, "5150d1772f50834a503e069a973fbd7c"},
    {64, "1eaf077dc0d4cd3f8cad4d383658a74b"},
};

std::string Hex(const Hash128& hash) {
  std::string text;
  for (const uint64_t word : {hash.low, hash.high}) {
    for (int byte = 0; byte < 8; ++byte) {
      text += absl::StrFormat("%02x", word >> (8 * byte) & 0xFF);
    }
  }
  return text;
}

TEST(SipHashTest, AgreesWithOpenssl) {
  constexpr Hash128 kKey = {.low = 0x0706050403020100, .high = 0x0F0E0D0C0B0A0908};
  for (const Vector& vector : kVectors) {
    std::vector<std::byte> input;
    for (size_t i = 0; i < vector.num_bytes; ++i) {
      input.push_back(static_cast<std::byte>(i));
    }
    EXPECT_EQ(Hex(SipHash128(kKey, input)), vector.expected) << vector.num_bytes;
  }
}

}  // namespace
}  // namespace quire
