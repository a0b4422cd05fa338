#include "scheduler/sim/virtual_memory.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "gtest/gtest.h"

#include "tests/support/random.h"

namespace quire {
namespace {

WindowShape ShapeFor(const char* platform, BlockLayout layout, int64_t page_bytes) {
  return ShapeOfWindows(*FindPlatform(platform), layout, page_bytes, 16);
}

// Groups of 10 tokens on 3 pages; a page takes 5 to map and 2 to unmap.
constexpr WindowShape kShape = {.page_bytes = 100,
                                .tokens_per_group = 10,
                                .pages_per_group = 3,
                                .mappings_per_group = 3,
                                .bytes_per_token = 30};
constexpr VmmCost kCost = {.map = 5, .unmap = 2};

PageMapper MapperOf(int32_t num_slots, int64_t num_groups, const MapperOptions& options) {
  return PageMapper(kShape, kCost, num_slots, num_groups, options);
}

constexpr MapperOptions kOnPath = {.maps_ahead = false};

TEST(ShapeOfWindowsTest, APageOfTheLayerMajorLayoutHoldsTokensOfOneLayerAndKindOnly) {
  const WindowShape shape = ShapeFor("a100x2-yi-34b", BlockLayout::kLayerMajor, 64 * kKiB);

  EXPECT_EQ(shape.tokens_per_group, 64);  // 4 heads of 128 elements on each GPU
  EXPECT_EQ(shape.pages_per_group, 120);
  EXPECT_EQ(shape.mappings_per_group, 120);
  EXPECT_EQ(shape.group_bytes(), shape.tokens_per_group * shape.bytes_per_token);
}

TEST(ShapeOfWindowsTest, ABlockMajorGroupIsWholeBlocksAndWholePages) {
  for (const char* platform : {"a100-yi-6b", "a100x2-llama3-8b", "a100x2-yi-34b"}) {
    for (int64_t page : {4 * kKiB, 64 * kKiB, 256 * kKiB, 2 * kMiB}) {
      const WindowShape shape = ShapeFor(platform, BlockLayout::kBlockMajor, page);

      EXPECT_EQ(shape.tokens_per_group % 16, 0) << platform;
      EXPECT_EQ(shape.group_bytes(), shape.tokens_per_group * shape.bytes_per_token);
      EXPECT_EQ(shape.mappings_per_group, 1);
      // No smaller number of blocks is.
      for (int32_t tokens = 16; tokens < shape.tokens_per_group; tokens += 16) {
        EXPECT_NE(tokens * shape.bytes_per_token % page, 0) << platform << ", " << page;
      }
    }
  }
}

TEST(PageMapperTest, AStepWaitsForEachPageThatItsTokensNeed) {
  PageMapper mapper = MapperOf(2, 10, kOnPath);
  const int32_t slot = mapper.Begin(25);
  std::vector<int64_t> tokens(2);
  tokens[static_cast<size_t>(slot)] = 25;

  EXPECT_EQ(mapper.BeginStep(1000, tokens), 1000 + 3 * 3 * 5);
  EXPECT_EQ(mapper.num_mapped_groups(slot), 3);
  tokens[static_cast<size_t>(slot)] = 30;
  EXPECT_EQ(mapper.BeginStep(2000, tokens), 2000);
  tokens[static_cast<size_t>(slot)] = 31;
  EXPECT_EQ(mapper.BeginStep(3000, tokens), 3000 + 3 * 5);
  EXPECT_EQ(mapper.num_mappings(), 4 * 3);
  EXPECT_EQ(mapper.counts().num_pages_on_path, 12);
  EXPECT_EQ(mapper.counts().waited, 60);
}

TEST(PageMapperTest, WhatIsMappedAheadIsHiddenByALongStepAndDelaysAfterAShortOne) {
  PageMapper mapper = MapperOf(1, 10, {});
  mapper.Begin(10);

  // The group is full: the next one is mapped beside the step, until 15 + 15.
  EXPECT_EQ(mapper.BeginStep(0, {10}), 15);
  EXPECT_EQ(mapper.num_mapped_groups(0), 2);
  EXPECT_EQ(mapper.BeginStep(100, {11}), 100);
  EXPECT_EQ(mapper.BeginStep(200, {20}), 200);
  EXPECT_EQ(mapper.BeginStep(203, {21}), 215);
  EXPECT_EQ(mapper.counts().num_pages_ahead, 6);
  EXPECT_EQ(mapper.counts().waited, 15 + 12);
}

TEST(PageMapperTest, ARequestTakesOverThePagesOfTheOneBeforeIt) {
  PageMapper mapper = MapperOf(1, 10, kOnPath);
  mapper.Begin(20);
  EXPECT_EQ(mapper.BeginStep(0, {20}), 30);
  mapper.End(0);

  EXPECT_EQ(mapper.Begin(40), 0);
  EXPECT_EQ(mapper.BeginStep(100, {40}), 100 + 2 * 3 * 5);
  EXPECT_EQ(mapper.counts().num_pages_found, 2 * 3);
  EXPECT_EQ(mapper.counts().num_pages_unmapped, 0);
}

TEST(PageMapperTest, WithoutDeferralTheNextStepWaitsForUnmapping) {
  PageMapper mapper = MapperOf(1, 10, {.maps_ahead = false, .defers_reclamation = false});
  mapper.Begin(20);
  EXPECT_EQ(mapper.BeginStep(0, {20}), 30);
  mapper.End(0);
  mapper.Begin(10);

  EXPECT_EQ(mapper.num_free_groups(), 10);
  EXPECT_EQ(mapper.BeginStep(100, {10}), 100 + 2 * 3 * 2 + 3 * 5);
  EXPECT_EQ(mapper.BeginStep(200, {10}), 200);  // once
}

TEST(PageMapperTest, TheSlotThatFitsBestIsTaken) {
  PageMapper mapper = MapperOf(4, 20, kOnPath);
  for (int32_t i = 0; i < 4; ++i) {
    mapper.Begin(0);
  }
  ASSERT_TRUE(mapper.BeginStep(0, {30, 60, 10, 50}).has_value());
  for (int32_t i = 0; i < 4; ++i) {
    mapper.End(i);
  }

  EXPECT_EQ(mapper.Begin(41), 3);   // 50 are enough, 60 too
  EXPECT_EQ(mapper.Begin(100), 1);  // none is enough: the most
  EXPECT_EQ(mapper.Begin(5), 2);
  EXPECT_EQ(mapper.Begin(40), 0);
}

TEST(PageMapperTest, GroupsThatNobodyUsesAreTakenWhenThePoolIsEmpty) {
  PageMapper mapper = MapperOf(2, 4, kOnPath);
  mapper.Begin(30);
  mapper.Begin(10);
  ASSERT_TRUE(mapper.BeginStep(0, {30, 10}).has_value());
  mapper.End(0);

  // Two groups from the slot that has ended: unmapped, then mapped.
  EXPECT_EQ(mapper.BeginStep(100, {0, 30}), 100 + 2 * 3 * (2 + 5));
  EXPECT_EQ(mapper.num_mapped_groups(0), 1);
  EXPECT_EQ(mapper.num_mapped_groups(1), 3);
  EXPECT_EQ(mapper.BeginStep(200, {0, 50}), std::nullopt);
}

TEST(PageMapperTest, MappingAheadThatDoesNotFitIsLeftToTheStep) {
  PageMapper mapper = MapperOf(1, 1, {});
  mapper.Begin(10);

  EXPECT_EQ(mapper.BeginStep(0, {10}), 15);
  EXPECT_EQ(mapper.BeginStep(20, {10}), 20);
  EXPECT_EQ(mapper.BeginStep(30, {11}), std::nullopt);
}

// Requests that come, grow and end at random, and what their slots must hold.
class RandomRequests {
 public:
  static constexpr int32_t kSlots = 6;

  RandomRequests(Random& random, int64_t num_groups, const MapperOptions& options)
      : random_(random),
        num_groups_(num_groups),
        mapper_(MapperOf(kSlots, num_groups, options)),
        tokens_(kSlots),
        active_(kSlots) {}

  void ComeAndGo() {
    if (random_.OneIn(4) && std::count(active_.begin(), active_.end(), true) < kSlots) {
      const int64_t prompt = random_.Between(1, 60);
      const auto slot = static_cast<size_t>(mapper_.Begin(prompt));
      EXPECT_FALSE(active_[slot]);
      active_[slot] = true;
      tokens_[slot] = prompt;
    }
    const auto slot = static_cast<size_t>(random_.Below(kSlots));
    if (random_.OneIn(6) && active_[slot]) {
      mapper_.End(static_cast<int32_t>(slot));
      active_[slot] = false;
    }
  }

  // Adds one token to each active slot. Returns false if the pool is too small.
  bool Step() {
    int64_t needed = 0;
    for (size_t slot = 0; slot < kSlots; ++slot) {
      tokens_[slot] += active_[slot] ? 1 : 0;
      needed += active_[slot] ? (tokens_[slot] + 9) / 10 : 0;
    }
    const std::optional<Instant> begin = mapper_.BeginStep(now_, tokens_);
    EXPECT_EQ(begin.has_value(), needed <= num_groups_);
    if (!begin.has_value()) {
      return false;
    }
    EXPECT_GE(*begin, now_);
    now_ = *begin + random_.Below(60);
    return true;
  }

  void Check() const {
    int64_t mapped = 0;
    for (size_t slot = 0; slot < kSlots; ++slot) {
      const int64_t groups = mapper_.num_mapped_groups(static_cast<int32_t>(slot));
      mapped += groups;
      EXPECT_TRUE(!active_[slot] || 10 * groups >= tokens_[slot]);
    }
    EXPECT_EQ(mapped + mapper_.num_free_groups(), num_groups_);
    const MapperCounts& counts = mapper_.counts();
    EXPECT_EQ(counts.num_pages_on_path + counts.num_pages_ahead - counts.num_pages_unmapped,
              3 * mapped);
  }

 private:
  Random& random_;
  int64_t num_groups_;
  PageMapper mapper_;
  std::vector<int64_t> tokens_;
  std::vector<bool> active_;
  Instant now_ = 0;
};

TEST(PageMapperTest, NoGroupIsLostOrTakenFromARequestThatNeedsIt) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const MapperOptions options = {.maps_ahead = random.OneIn(2),
                                   .defers_reclamation = random.OneIn(2)};
    RandomRequests requests(random, random.Between(10, 40), options);
    for (int step = 0; step < 200; ++step) {
      requests.ComeAndGo();
      if (!requests.Step()) {
        break;
      }
      requests.Check();
    }
  }
}

}  // namespace
}  // namespace quire
