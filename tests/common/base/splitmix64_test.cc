#include "common/base/splitmix64.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace quire {
namespace {

// The first numbers of the public reference implementation for these seeds.
TEST(SplitMix64Test, IsTheReference) {
  uint64_t state = 0;
  EXPECT_EQ(SplitMix64(state), 0xE220A8397B1DCDAFULL);
  EXPECT_EQ(SplitMix64(state), 0x6E789E6AA1B965F4ULL);
  state = 1234567;
  EXPECT_EQ(SplitMix64(state), 6457827717110365317ULL);
  EXPECT_EQ(SplitMix64(state), 3203168211198807973ULL);
}

}  // namespace
}  // namespace quire
