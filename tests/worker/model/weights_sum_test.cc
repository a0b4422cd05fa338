#include "worker/model/weights_sum.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <span>
#include <vector>

#include "gtest/gtest.h"

#include "common/base/splitmix64.h"
#include "common/model/digest.h"
#include "tests/support/random.h"

namespace quire {
namespace {

std::vector<std::byte> SomeBytes(int32_t count) {
  Random random(count);
  std::vector<std::byte> bytes;
  bytes.reserve(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) {
    bytes.push_back(static_cast<std::byte>(random.Below(256)));
  }
  return bytes;
}

TEST(WeightsSumTest, PartsAddUpWhereverTheyAreCut) {
  const std::vector<std::byte> bytes = SomeBytes(301);
  const WeightsSum sum("a");
  const uint64_t whole = sum.Of(0, bytes);
  for (size_t first = 0; first <= bytes.size(); ++first) {
    for (size_t second = first; second <= bytes.size(); second += 7) {
      const auto all = std::span(bytes);
      EXPECT_EQ(sum.Of(0, all.first(first)) +
                    sum.Of(static_cast<int64_t>(first), all.subspan(first, second - first)) +
                    sum.Of(static_cast<int64_t>(second), all.subspan(second)),
                whole)
          << first << " " << second;
    }
  }
}

// The sum is defined in weights_sum.h, because ranks on unlike machines compare their sums.
TEST(WeightsSumTest, IsWhatPlainLoopsAddUp) {
  constexpr size_t kLines = 5;
  const std::vector<std::byte> bytes = SomeBytes(kLines * 256);
  Digest digest;
  digest.AddBytes("a");
  uint64_t expected = 0;
  for (size_t line = 0; line < kLines; ++line) {
    uint64_t of_words = digest.value();
    uint64_t of_line = 0;
    for (size_t word = 0; word < 64; ++word) {
      uint32_t value = 0;
      std::memcpy(&value, &bytes[line * 256 + word * 4], sizeof(value));
      of_line += value * (SplitMix64(of_words) >> 32 | 1);
    }
    uint64_t of_lines = digest.value() + line;
    expected += of_line * (SplitMix64(of_lines) | 1);
  }
  EXPECT_EQ(WeightsSum("a").Of(0, bytes), expected);
}

TEST(WeightsSumTest, AnyBitThatFlipsChangesIt) {
  std::vector<std::byte> bytes = SomeBytes(1001);
  const WeightsSum sum("a");
  std::set<uint64_t> sums = {sum.Of(0, bytes)};
  for (std::byte& byte : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const std::byte flip{static_cast<unsigned char>(1U << static_cast<unsigned>(bit))};
      byte ^= flip;
      sums.insert(sum.Of(0, bytes));
      byte ^= flip;
    }
  }
  EXPECT_EQ(sums.size(), 8 * bytes.size() + 1);
}

TEST(WeightsSumTest, WhereBytesLieMatters) {
  const std::vector<std::byte> bytes = SomeBytes(16);
  const std::vector<std::byte> swapped = [&] {
    std::vector<std::byte> halves(bytes.begin() + 8, bytes.end());
    halves.insert(halves.end(), bytes.begin(), bytes.begin() + 8);
    return halves;
  }();

  EXPECT_NE(WeightsSum("a").Of(0, bytes), WeightsSum("a").Of(0, swapped));
  EXPECT_NE(WeightsSum("a").Of(0, bytes), WeightsSum("a").Of(8, bytes));
  EXPECT_NE(WeightsSum("a").Of(0, bytes), WeightsSum("b").Of(0, bytes));
}

}  // namespace
}  // namespace quire
