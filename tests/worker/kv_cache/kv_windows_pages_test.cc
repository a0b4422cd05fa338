// Windows over pages of several blocks.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/reference/reference_backend.h"
#include "tests/worker/kv_cache/watched_windows.h"
#include "worker/kv_cache/kv_windows.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kNumWindows = 3;

// Pages of 4 blocks; windows of 6 blocks, which are 2 pages.
class PagesInWindowsTest : public testing::Test {
 protected:
  PagesInWindowsTest() {
    auto made = KvWindows::Create(
        *backend_, memory_, kNumWindows, /*window_blocks=*/6, /*blocks_per_page=*/4);
    EXPECT_TRUE(made.ok()) << made.status();
    windows_ = *std::move(made);
  }

  bool Show(SequenceHandle handle, const std::vector<BlockId>& block_ids) {
    return windows_->Show(handle, block_ids);
  }
  // The pages that the window's places show, by the memory's own record.
  std::vector<BlockId> ShownIn(SequenceHandle handle) const {
    const int64_t first = windows_->FirstPlace(handle);
    return {memory_.ShownAt(first), memory_.ShownAt(first + 1)};
  }

  std::unique_ptr<KernelBackend> backend_ = CreateReferenceBackend();
  WatchedWindows memory_{{.block_bytes = 4096, .num_blocks = 8, .num_places = kNumWindows * 2}};
  std::unique_ptr<KvWindows> windows_;
};

TEST_F(PagesInWindowsTest, APlaceShowsAPageOfBlocks) {
  windows_->Begin(1);

  EXPECT_TRUE(Show(1, {8, 9, 10, 11, 20}));

  EXPECT_THAT(ShownIn(1), ElementsAre(2, 5));
  EXPECT_EQ(windows_->FirstPlace(1), 2);
  EXPECT_EQ(windows_->FirstBlockPlace(1), 8);
  EXPECT_EQ(windows_->counts().num_mapped, 2);
}

TEST_F(PagesInWindowsTest, ASequenceThatGrowsInItsPageMapsNothing) {
  windows_->Begin(0);
  EXPECT_TRUE(Show(0, {8}));
  memory_.TakeMapCalls();

  EXPECT_TRUE(Show(0, {8, 9, 10}));
  EXPECT_THAT(memory_.TakeMapCalls(), IsEmpty());
  EXPECT_EQ(windows_->counts().num_found, 0);

  EXPECT_TRUE(Show(0, {8, 9, 10, 11, 12}));
  EXPECT_THAT(ShownIn(0), ElementsAre(2, 3));
}

TEST_F(PagesInWindowsTest, BlocksThatDoNotFillPagesInOrderAreNotShown) {
  const std::vector<std::vector<BlockId>> tables = {
      {9},      // not the first of its page
      {8, 10},  // not in order
      {8, 13},  // of two pages
      {8, 9, 10, 11, 13},
      {0, 8},  // in its page at another place than in its group
      {0, 1},  // the null block's page shows nothing
  };
  for (const std::vector<BlockId>& table : tables) {
    windows_->Begin(0);
    EXPECT_FALSE(Show(0, table)) << testing::PrintToString(table);
  }
  EXPECT_THAT(memory_.TakeMapCalls(), IsEmpty());
}

TEST_F(PagesInWindowsTest, ASequenceThatLeavesItsPageIsNotShownAnyMore) {
  windows_->Begin(0);
  EXPECT_TRUE(Show(0, {8, 9}));

  EXPECT_FALSE(Show(0, {8, 9, 18}));
  EXPECT_FALSE(Show(0, {8, 9, 18, 19, 20}));
}

TEST_F(PagesInWindowsTest, PassedBlocksMayLackInAPage) {
  windows_->Begin(0);

  EXPECT_TRUE(Show(0, {0, 0, 10}));
  EXPECT_THAT(ShownIn(0), ElementsAre(2, kNullBlockId));
  windows_->Begin(1);
  EXPECT_TRUE(Show(1, {0, 0, 0, 0}));
  EXPECT_TRUE(Show(1, {0, 0, 0, 0, 12, 13}));
  EXPECT_THAT(ShownIn(1), ElementsAre(kNullBlockId, 3));
}

TEST_F(PagesInWindowsTest, APageIsMappedAheadWhenItsFirstBlockIsExpected) {
  windows_->Begin(0);
  EXPECT_TRUE(Show(0, {8, 9, 10}));
  windows_->Expect(0, 11);
  windows_->StartAhead();
  EXPECT_TRUE(Show(0, {8, 9, 10, 11}));
  windows_->Expect(0, 16);
  windows_->StartAhead();

  EXPECT_TRUE(Show(0, {8, 9, 10, 11, 16}));

  EXPECT_THAT(ShownIn(0), ElementsAre(2, 4));
  EXPECT_EQ(windows_->counts().num_mapped, 1);
  EXPECT_EQ(windows_->counts().num_mapped_ahead, 1);
}

TEST_F(PagesInWindowsTest, BlocksThatWillNotBeShownAreNotMappedAhead) {
  windows_->Begin(0);
  EXPECT_TRUE(Show(0, {8, 9, 10}));
  memory_.TakeMapCalls();
  windows_->Expect(0, 16);  // would take the place of the page that the sequence reads
  windows_->StartAhead();
  EXPECT_TRUE(Show(0, {8, 9, 10, 11}));
  windows_->Expect(0, 17);  // is not the first of its page
  windows_->Expect(0, 0);
  windows_->StartAhead();
  EXPECT_FALSE(Show(0, {8, 9, 10, 11, 17}));

  EXPECT_THAT(memory_.TakeMapCalls(), IsEmpty());
}

TEST_F(PagesInWindowsTest, TheSpareWindowsPagesAreMappedAhead) {
  windows_->ExpectBeginning(2, std::vector<BlockId>{8, 9, 10, 11, 16, 17});
  windows_->StartAhead();
  windows_->Begin(2);

  EXPECT_TRUE(Show(2, {8, 9, 10, 11, 16}));

  EXPECT_EQ(windows_->counts().num_mapped, 0);
  EXPECT_EQ(windows_->counts().num_mapped_ahead, 2);
}

}  // namespace
}  // namespace quire
