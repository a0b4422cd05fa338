#include "scheduler/sim/buddy_allocator.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "gtest/gtest.h"

#include "tests/support/random.h"

namespace quire {
namespace {

using Chunk = BuddyAllocator::Chunk;

// A buddy allocator from the definition, over a plain map of slots. A free chunk is an aligned run
// of free slots that cannot be doubled inside the pool. The smallest chunk that holds the request
// is cut, the lowest of them first.
class PlainBuddies {
 public:
  explicit PlainBuddies(int32_t num_slots) : is_used_(static_cast<size_t>(num_slots), false) {}

  std::optional<Chunk> Allocate(int32_t num_slots) {
    const int32_t wanted = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(num_slots)));
    for (int32_t length = wanted; length <= size(); length *= 2) {
      for (int32_t begin = 0; begin + length <= size(); begin += length) {
        const bool is_whole = IsFree(begin, length) && !IsFree(begin & ~length, 2 * length);
        if (is_whole) {
          Set(begin, wanted, true);
          return Chunk{begin, wanted};
        }
      }
    }
    return std::nullopt;
  }

  void Free(const Chunk& chunk) { Set(chunk.begin, chunk.num_slots, false); }

 private:
  int32_t size() const { return static_cast<int32_t>(is_used_.size()); }
  bool IsFree(int32_t begin, int32_t length) const {
    return begin + length <= size() && std::none_of(is_used_.begin() + begin,
                                                    is_used_.begin() + begin + length,
                                                    [](bool used) { return used; });
  }
  void Set(int32_t begin, int32_t length, bool used) {
    std::fill_n(is_used_.begin() + begin, length, used);
  }

  std::vector<bool> is_used_;
};

class BuddyAllocatorTest : public testing::TestWithParam<int32_t> {};

TEST_P(BuddyAllocatorTest, DoesWhatTheDefinitionDoesOnRandomRequests) {
  BuddyAllocator allocator(GetParam());
  PlainBuddies plain(GetParam());
  Random random(static_cast<uint64_t>(GetParam()));
  std::vector<Chunk> chunks;
  int32_t num_used = 0;
  int num_refused = 0;

  for (int i = 0; i < 4000; ++i) {
    if (!chunks.empty() && random.OneIn(2)) {
      std::swap(chunks[static_cast<size_t>(random.Below(static_cast<int32_t>(chunks.size())))],
                chunks.back());
      allocator.Free(chunks.back());
      plain.Free(chunks.back());
      num_used -= chunks.back().num_slots;
      chunks.pop_back();
    } else {
      const int32_t num_slots = random.Between(1, std::max(1, GetParam() / 3));
      const std::optional<Chunk> chunk = allocator.Allocate(num_slots);
      ASSERT_EQ(chunk, plain.Allocate(num_slots));
      if (chunk.has_value()) {
        ASSERT_GE(chunk->num_slots, num_slots);
        chunks.push_back(*chunk);
        num_used += chunk->num_slots;
      } else {
        ++num_refused;
      }
    }
    ASSERT_EQ(allocator.num_free_slots(), GetParam() - num_used);
  }

  if (GetParam() > 1) {
    EXPECT_GT(num_refused, 0);
  }
}

TEST_P(BuddyAllocatorTest, IsWholeAgainWhenEverythingIsFreed) {
  BuddyAllocator allocator(GetParam());
  std::vector<Chunk> chunks;
  while (std::optional<Chunk> chunk = allocator.Allocate(1)) {
    chunks.push_back(*chunk);
  }
  ASSERT_EQ(static_cast<int32_t>(chunks.size()), GetParam());
  EXPECT_EQ(allocator.num_free_slots(), 0);

  for (size_t i = 0; i < chunks.size(); ++i) {
    allocator.Free(chunks[(i * 7919) % chunks.size()]);  // a prime: each once, in a mixed order
  }

  EXPECT_EQ(allocator.num_free_slots(), GetParam());
  const uint32_t largest = std::bit_floor(static_cast<uint32_t>(GetParam()));
  EXPECT_TRUE(allocator.Allocate(static_cast<int32_t>(largest)).has_value());
}

INSTANTIATE_TEST_SUITE_P(Pools, BuddyAllocatorTest, testing::Values(1, 2, 3, 64, 100, 127, 233));

TEST(BuddyAllocatorPaperTest, SevenWholeContextsFitThePoolOfOpt13B) {
  BuddyAllocator allocator(15728);

  for (int i = 0; i < 7; ++i) {
    ASSERT_TRUE(allocator.Allocate(2048).has_value()) << i;
  }

  EXPECT_FALSE(allocator.Allocate(2048).has_value());
  EXPECT_EQ(allocator.num_free_slots(), 15728 - 7 * 2048);
}

}  // namespace
}  // namespace quire
