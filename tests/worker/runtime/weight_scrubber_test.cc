#include "worker/runtime/weight_scrubber.h"

#include <span>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace quire {
namespace {

using Memory = std::vector<std::byte>;

// Two parts; the second one is larger than a piece and ends within one.
struct TwoParts {
  Memory small = Memory(1000, std::byte{1});
  Memory large = Memory(2 * MemorySums::kPieceBytes + 5, std::byte{2});

  std::vector<std::span<const std::byte>> spans() const { return {small, large}; }
};

int NumPiecesThatDiffer(MemorySums& sums) {
  int num_different = 0;
  for (size_t i = 0; i < sums.num_pieces(); ++i) {
    num_different += sums.CheckNext() ? 0 : 1;
  }
  return num_different;
}

TEST(MemorySumsTest, MemoryThatDoesNotChangeIsTheSameEachTime) {
  const TwoParts parts;
  MemorySums sums(parts.spans());
  EXPECT_EQ(sums.num_pieces(), 4U);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(NumPiecesThatDiffer(sums), 0);
  }
}

TEST(MemorySumsTest, OneBitAnywhereIsFound) {
  TwoParts parts;
  MemorySums sums(parts.spans());
  ASSERT_EQ(NumPiecesThatDiffer(sums), 0);
  const std::vector<std::byte*> places = {&parts.small.front(),
                                          &parts.small.back(),
                                          &parts.large.front(),
                                          &parts.large[MemorySums::kPieceBytes - 1],
                                          &parts.large[MemorySums::kPieceBytes],
                                          &parts.large.back()};
  for (std::byte* place : places) {
    for (int bit = 0; bit < 8; ++bit) {
      *place ^= std::byte{1} << bit;
      EXPECT_EQ(NumPiecesThatDiffer(sums), 1);
      *place ^= std::byte{1} << bit;
      EXPECT_EQ(NumPiecesThatDiffer(sums), 0);
    }
  }
}

TEST(WeightScrubberTest, NoMemoryIsNoWork) {
  const WeightScrubber scrubber({}, [] { FAIL() << "nothing can change"; });
}

// tests/integration/tensor_parallel_test.py shows that a worker finds a change. Here the bit would
// have to flip in a race with the thread that reads it.
TEST(WeightScrubberTest, StopsWhileItReads) {
  const TwoParts parts;
  const WeightScrubber scrubber(parts.spans(), [] { FAIL() << "nothing has changed"; });
}

TEST(WeightScrubberTest, SaysHowMuchItHasRead) {
  const TwoParts parts;
  const auto size = static_cast<int64_t>(parts.small.size() + parts.large.size());
  const WeightScrubber scrubber(parts.spans(), [] { FAIL() << "nothing has changed"; });
  const WeightScrubber none({}, [] { FAIL() << "nothing can change"; });
  EXPECT_TRUE(scrubber.has_memory());
  EXPECT_FALSE(none.has_memory());

  while (scrubber.num_passes() < 2) {
    std::this_thread::yield();
  }

  EXPECT_GE(scrubber.num_bytes(), 2 * size);
  EXPECT_LE(scrubber.num_bytes(), size * (scrubber.num_passes() + 1));
  EXPECT_EQ(none.num_passes(), 0);
}

}  // namespace
}  // namespace quire
