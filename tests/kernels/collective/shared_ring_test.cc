#include "kernels/collective/shared_ring.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/random.h"

namespace quire {
namespace {

using testing::Each;
using testing::Optional;

constexpr size_t kRingBytes = 256;
constexpr std::byte kCanary{0xCA};

std::vector<std::byte> RandomBytes(Random& random, size_t count) {
  std::vector<std::byte> bytes(count);
  std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random.Below(256)); });
  return bytes;
}

// A ring between two areas that must not be written.
class SharedRingTest : public testing::Test {
 protected:
  std::span<std::byte> ring() { return std::span(memory_.bytes).subspan(kRingBytes, kRingBytes); }

  void ExpectNothingElseTouched() const {
    const std::span<const std::byte> all = memory_.bytes;
    EXPECT_THAT(all.first(kRingBytes), Each(kCanary));
    EXPECT_THAT(all.last(kRingBytes), Each(kCanary));
  }

  struct alignas(kRingLineBytes) Memory {
    Memory() { std::ranges::fill(bytes, kCanary); }
    std::array<std::byte, 3 * kRingBytes> bytes;
  };
  Memory memory_;
  RingCounters counters_;
  RingWriter writer_{counters_, ring()};
  RingReader reader_{counters_, ring()};
};

TEST_F(SharedRingTest, WhatIsWrittenIsReadInOrder) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Random random(seed);
    for (int message = 0; message < 50; ++message) {
      const auto out = RandomBytes(random, static_cast<size_t>(random.Below(1000)));
      std::vector<std::byte> in;
      size_t num_sent = 0;
      while (in.size() < out.size()) {
        if (random.OneIn(2)) {
          const auto sent = writer_.Write(std::span(out).subspan(num_sent));
          ASSERT_TRUE(sent.has_value());
          num_sent += *sent;
        } else {
          // The rest of the message, or some lines of it.
          const size_t rest = out.size() - in.size();
          const size_t lines = kRingLineBytes * static_cast<size_t>(random.Between(1, 5));
          const auto piece = reader_.Peek(random.OneIn(2) ? rest : std::min(rest, lines));
          ASSERT_TRUE(piece.has_value());
          in.insert(in.end(), piece->begin(), piece->end());
          reader_.Release(piece->size());
        }
      }
      ASSERT_EQ(in, out) << "seed " << seed << ", message " << message;
    }
  }
  ExpectNothingElseTouched();
}

TEST_F(SharedRingTest, AMessageBeginsAtALine) {
  const std::vector<std::byte> odd(5);
  ASSERT_THAT(writer_.Write(odd), Optional(odd.size()));
  reader_.Release(reader_.Peek(odd.size())->size());
  ASSERT_THAT(writer_.Write(odd), Optional(odd.size()));
  EXPECT_EQ(reader_.Peek(odd.size())->data(), ring().data() + kRingLineBytes);
}

TEST_F(SharedRingTest, AFullRingTakesNothing) {
  const std::vector<std::byte> more(kRingBytes + 1);
  EXPECT_THAT(writer_.Write(more), Optional(kRingBytes));
  EXPECT_THAT(writer_.Room(), Optional(size_t{0}));
  EXPECT_THAT(writer_.Write(more), Optional(size_t{0}));
}

TEST_F(SharedRingTest, CountersThatCannotBeTrueAreReported) {
  const std::vector<std::byte> line(kRingLineBytes);
  ASSERT_TRUE(writer_.Write(line).has_value());
  ASSERT_TRUE(writer_.Write(line).has_value());
  reader_.Release(reader_.Peek(kRingLineBytes)->size());
  // One line is in the ring, one was read.
  for (const uint64_t bad : {uint64_t{0},                   // what was read was never written
                             uint64_t{kRingLineBytes + 1},  // no line
                             uint64_t{2 * kRingLineBytes + kRingBytes},  // more than a ring
                             ~uint64_t{0},
                             uint64_t{1} << 63}) {
    counters_.num_written = bad;
    EXPECT_EQ(reader_.Available(), std::nullopt) << bad;
    EXPECT_EQ(reader_.Peek(1), std::nullopt) << bad;
  }
  for (const uint64_t bad : {uint64_t{3 * kRingLineBytes},  // what was not written was read
                             uint64_t{1},
                             ~uint64_t{0},
                             uint64_t{1} << 63}) {
    counters_.num_read = bad;
    EXPECT_EQ(writer_.Room(), std::nullopt) << bad;
    EXPECT_EQ(writer_.Write(line), std::nullopt) << bad;
  }
  ExpectNothingElseTouched();
}

TEST_F(SharedRingTest, NoCounterLeadsOutOfTheRing) {
  Random random(1);
  for (int i = 0; i < 20'000; ++i) {
    // Small, near the truth, or anything.
    const uint64_t any = random.Next() >> random.Below(64);
    std::atomic<uint64_t>& counter = random.OneIn(2) ? counters_.num_written : counters_.num_read;
    counter = random.OneIn(2) ? any : counter + any * kRingLineBytes;
    static_cast<void>(writer_.Write(RandomBytes(random, static_cast<size_t>(random.Below(600)))));
    const auto piece = reader_.Peek(static_cast<size_t>(random.Below(600)));
    if (piece.has_value() && !piece->empty()) {
      ASSERT_GE(piece->data(), ring().data());
      ASSERT_LE(piece->data() + piece->size(), ring().data() + ring().size());
      reader_.Release(piece->size());
    }
  }
  ExpectNothingElseTouched();
}

}  // namespace
}  // namespace quire
