#include "scheduler/kv_cache/prefix_cache.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <optional>

#include "absl/base/attributes.h"
#include <gtest/gtest.h>

namespace {

std::atomic<int64_t> num_allocations = 0;

}  // namespace

// These replace the library's allocator. Inlined, they look mismatched to the compiler.
ABSL_ATTRIBUTE_NOINLINE void* operator new(size_t bytes) {
  ++num_allocations;
  void* memory = std::malloc(bytes);
  return memory != nullptr ? memory : throw std::bad_alloc();
}
ABSL_ATTRIBUTE_NOINLINE void operator delete(void* memory) noexcept { std::free(memory); }
ABSL_ATTRIBUTE_NOINLINE void operator delete(void* memory, size_t /*bytes*/) noexcept {
  std::free(memory);
}

namespace quire {
namespace {

constexpr int32_t kNumBlocks = 100;

// All hashes have the same low word, so that they collide in the table.
BlockHash HashOf(int32_t i) { return {.low = uint64_t{1} << 40, .high = static_cast<uint64_t>(i)}; }

TEST(PrefixCacheTest, BlocksWhoseHashesMeetAreFoundEach) {
  PrefixCache cache(kNumBlocks);
  for (int32_t i = 0; i < kNumBlocks; ++i) {
    cache.Insert(i, HashOf(i));
  }
  for (int32_t i = 0; i < kNumBlocks; i += 3) {
    cache.Erase(i);
  }
  cache.CheckInvariants();

  EXPECT_EQ(cache.size(), 66);
  for (int32_t i = 0; i < kNumBlocks; ++i) {
    EXPECT_EQ(cache.Find(HashOf(i)), i % 3 == 0 ? std::nullopt : std::make_optional(i)) << i;
  }
}

TEST(PrefixCacheTest, TheFirstBlockOfAHashIsListedUntilItGoes) {
  PrefixCache cache(kNumBlocks);
  cache.Insert(7, HashOf(1));
  cache.Insert(8, HashOf(1));
  cache.Insert(7, HashOf(2));

  EXPECT_EQ(cache.Find(HashOf(1)), 7);
  EXPECT_EQ(cache.Find(HashOf(2)), std::nullopt);
  EXPECT_EQ(cache.HashOf(8), std::nullopt);
  cache.Erase(8);
  cache.Erase(7);

  EXPECT_EQ(cache.Find(HashOf(1)), std::nullopt);
  EXPECT_EQ(cache.size(), 0);
  cache.CheckInvariants();
}

// Listed blocks stay for hours. An allocation for each would pin heap pages: after a peak of memory
// use these could not be returned.
TEST(PrefixCacheTest, ListingTakesNoMemory) {
  PrefixCache cache(kNumBlocks);
  const int64_t num_before = num_allocations;
  ASSERT_GT(num_before, 0);

  for (int32_t i = 0; i < kNumBlocks; ++i) {
    cache.Insert(i, {.low = static_cast<uint64_t>(i) << 32, .high = 0});
  }

  EXPECT_EQ(num_allocations, num_before);
  EXPECT_EQ(cache.size(), kNumBlocks);
}

}  // namespace
}  // namespace quire
