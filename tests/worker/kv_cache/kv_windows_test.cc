#include "worker/kv_cache/kv_windows.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/reference/reference_backend.h"
#include "tests/worker/kv_cache/watched_windows.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kNumWindows = 3;
constexpr int32_t kWindowBlocks = 4;

using Fate = WatchedWindows::Fate;
using MapCall = WatchedWindows::MapCall;

// A call of Map, without its thread.
struct MapRun {
  int64_t place = 0;
  BlockId block = kNullBlockId;
  int64_t count = 0;

  bool operator==(const MapRun&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const MapRun& run) {
    return out << "place " << run.place << " block " << run.block << " count " << run.count;
  }
};

class KvWindowsTest : public testing::Test {
 protected:
  KvWindowsTest() {
    auto made = KvWindows::Create(*backend_, memory_, kNumWindows, kWindowBlocks);
    EXPECT_TRUE(made.ok()) << made.status();
    windows_ = *std::move(made);
  }

  bool Show(SequenceHandle handle, const std::vector<BlockId>& block_ids) {
    return windows_->Show(handle, block_ids);
  }
  // Shows the blocks of a sequence and ends it, which leaves them mapped in the window.
  void ShowAndEnd(SequenceHandle handle, const std::vector<BlockId>& block_ids) {
    windows_->Begin(handle);
    EXPECT_TRUE(Show(handle, block_ids));
    windows_->End(handle);
    memory_.TakeMapCalls();
  }

  // The blocks that the window's places show, by the memory's own record.
  std::vector<BlockId> ShownIn(SequenceHandle handle) const {
    std::vector<BlockId> shown(kWindowBlocks);
    for (size_t i = 0; i < shown.size(); ++i) {
      shown[i] = memory_.ShownAt(windows_->FirstPlace(handle) + static_cast<int64_t>(i));
    }
    return shown;
  }

  // The calls of Map since the last call of this function.
  std::vector<MapRun> TakeRuns() {
    std::vector<MapRun> runs;
    for (const MapCall& call : memory_.TakeMapCalls()) {
      runs.push_back({.place = call.place, .block = call.block, .count = call.count});
    }
    return runs;
  }

  void FailNextMap() {
    memory_.JudgeBy([is_first = true](const MapCall& /*call*/, bool /*shows*/) mutable {
      return std::exchange(is_first, false) ? Fate::kFails : Fate::kDone;
    });
  }

  std::unique_ptr<KernelBackend> backend_ = CreateReferenceBackend();
  WatchedWindows memory_{
      {.block_bytes = 4096, .num_blocks = 30, .num_places = int64_t{kNumWindows} * kWindowBlocks}};
  std::unique_ptr<KvWindows> windows_;
};

TEST_F(KvWindowsTest, ShowsTheBlocksOfATableOneBehindTheOther) {
  windows_->Begin(1);

  EXPECT_TRUE(Show(1, {7, 2, 9}));

  EXPECT_THAT(ShownIn(1), ElementsAre(7, 2, 9, kNullBlockId));
  EXPECT_EQ(windows_->num_mapped(), 3);
}

TEST_F(KvWindowsTest, NeighboursAreMappedInOneCall) {
  windows_->Begin(0);

  EXPECT_TRUE(Show(0, {7, 8, 9, 3}));

  EXPECT_THAT(TakeRuns(), ElementsAre(MapRun{0, 7, 3}, MapRun{3, 3, 1}));
  EXPECT_EQ(windows_->counts().num_mapped, 4);
}

TEST_F(KvWindowsTest, ASequenceThatGrowsMapsItsNewBlocksAlone) {
  windows_->Begin(2);
  EXPECT_TRUE(Show(2, {7}));
  TakeRuns();

  EXPECT_TRUE(Show(2, {7, 8, 5}));
  EXPECT_TRUE(Show(2, {7, 8, 5}));

  EXPECT_THAT(TakeRuns(), ElementsAre(MapRun{9, 8, 1}, MapRun{10, 5, 1}));
}

TEST_F(KvWindowsTest, WindowsMayShowTheSameBlock) {
  windows_->Begin(0);
  windows_->Begin(1);

  EXPECT_TRUE(Show(0, {7, 8}));
  EXPECT_TRUE(Show(1, {7, 5}));

  EXPECT_THAT(ShownIn(0), ElementsAre(7, 8, kNullBlockId, kNullBlockId));
  EXPECT_THAT(ShownIn(1), ElementsAre(7, 5, kNullBlockId, kNullBlockId));
}

TEST_F(KvWindowsTest, TheNextSequenceFindsBlocksInPlace) {
  ShowAndEnd(0, {7, 8, 9});

  windows_->Begin(0);
  EXPECT_TRUE(Show(0, {7, 5, 9}));

  EXPECT_THAT(TakeRuns(), ElementsAre(MapRun{1, 5, 1}));
  EXPECT_THAT(ShownIn(0), ElementsAre(7, 5, 9, kNullBlockId));
  EXPECT_EQ(windows_->counts().num_found, 2);
}

TEST_F(KvWindowsTest, ARunEndsAtABlockThatIsInPlace) {
  ShowAndEnd(0, {1, 8, 2, 3});

  windows_->Begin(0);
  EXPECT_TRUE(Show(0, {7, 8, 9, 10}));

  EXPECT_THAT(TakeRuns(), ElementsAre(MapRun{0, 7, 1}, MapRun{2, 9, 2}));
  EXPECT_EQ(windows_->num_mapped(), 4);
}

TEST_F(KvWindowsTest, NullBlocksNeedNoMapping) {
  windows_->Begin(0);

  EXPECT_TRUE(Show(0, {kNullBlockId, kNullBlockId, 1}));

  EXPECT_THAT(TakeRuns(), ElementsAre(MapRun{2, 1, 1}));
  EXPECT_EQ(windows_->num_mapped(), 1);
}

TEST_F(KvWindowsTest, NullBlocksMayBeShownAsAnything) {
  ShowAndEnd(0, {7, 8});

  windows_->Begin(0);
  EXPECT_TRUE(Show(0, {kNullBlockId, 8, 9}));

  EXPECT_THAT(TakeRuns(), ElementsAre(MapRun{2, 9, 1}));
  EXPECT_EQ(windows_->num_mapped(), 3);
}

TEST_F(KvWindowsTest, BeginForgetsTheSequenceThatHasTheWindow) {
  windows_->Begin(0);
  EXPECT_TRUE(Show(0, {7, 8}));
  TakeRuns();

  windows_->Begin(0);
  EXPECT_TRUE(Show(0, {7, 5}));

  EXPECT_THAT(TakeRuns(), ElementsAre(MapRun{1, 5, 1}));
  EXPECT_THAT(ShownIn(0), ElementsAre(7, 5, kNullBlockId, kNullBlockId));
}

TEST_F(KvWindowsTest, NewWindowsShowNothing) {
  ShowAndEnd(0, {7, 8});

  windows_.reset();
  auto made = KvWindows::Create(*backend_, memory_, kNumWindows, kWindowBlocks);

  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ((*made)->num_mapped(), 0);
  EXPECT_EQ(memory_.num_shown(), 0);
}

class AheadTest : public KvWindowsTest {
 protected:
  AheadTest() {
    windows_->Begin(0);
    EXPECT_TRUE(Show(0, {7}));
    TakeRuns();
  }

  // Whether another thread made every Map call since the calls were last taken.
  bool OthersMapped() {
    for (const MapCall& call : memory_.TakeMapCalls()) {
      if (call.thread == std::this_thread::get_id()) {
        return false;
      }
    }
    return true;
  }
};

TEST_F(AheadTest, WhatWasExpectedIsMappedOnAnotherThread) {
  windows_->Expect(0, 9);
  windows_->StartAhead();

  EXPECT_TRUE(Show(0, {7, 9}));

  EXPECT_THAT(ShownIn(0), ElementsAre(7, 9, kNullBlockId, kNullBlockId));
  EXPECT_TRUE(OthersMapped());
  EXPECT_EQ(windows_->counts().num_mapped_ahead, 1);
  EXPECT_EQ(windows_->counts().num_mapped, 1) << "that of the beginning";
}

TEST_F(AheadTest, SeveralSequencesMayExpectABlockEach) {
  windows_->Begin(2);
  EXPECT_TRUE(Show(2, {1, 2}));
  TakeRuns();
  windows_->Expect(0, 9);
  windows_->Expect(2, 3);
  windows_->StartAhead();

  EXPECT_TRUE(Show(2, {1, 2, 3}));
  EXPECT_TRUE(Show(0, {7, 9}));

  EXPECT_THAT(ShownIn(0), ElementsAre(7, 9, kNullBlockId, kNullBlockId));
  EXPECT_THAT(ShownIn(2), ElementsAre(1, 2, 3, kNullBlockId));
  EXPECT_TRUE(OthersMapped());
  EXPECT_EQ(windows_->counts().num_mapped_ahead, 2);
}

TEST_F(AheadTest, WhatWasExpectedWronglyIsMappedAnew) {
  windows_->Expect(0, 9);
  windows_->StartAhead();

  EXPECT_TRUE(Show(0, {7, 8}));

  EXPECT_THAT(ShownIn(0), ElementsAre(7, 8, kNullBlockId, kNullBlockId));
  EXPECT_EQ(windows_->num_mapped(), 2);
  EXPECT_EQ(windows_->counts().num_mapped_ahead, 0);
}

TEST_F(AheadTest, WhatIsExpectedTwiceIsMappedOnce) {
  windows_->Expect(0, 9);
  windows_->Expect(0, 9);
  windows_->StartAhead();
  windows_->Expect(0, 9);
  windows_->StartAhead();

  EXPECT_TRUE(Show(0, {7, 9}));

  EXPECT_THAT(TakeRuns(), ElementsAre(MapRun{1, 9, 1}));
}

TEST_F(AheadTest, TheLastExpectationCounts) {
  windows_->Expect(0, 9);
  windows_->Expect(0, 8);
  windows_->StartAhead();
  windows_->Expect(0, 5);
  windows_->StartAhead();

  EXPECT_TRUE(Show(0, {7, 5}));

  EXPECT_THAT(ShownIn(0), ElementsAre(7, 5, kNullBlockId, kNullBlockId));
  EXPECT_TRUE(OthersMapped());
}

TEST_F(AheadTest, WhatWasExpectedAndNotStartedIsShownAllTheSame) {
  windows_->Expect(0, 9);

  EXPECT_TRUE(Show(0, {7, 9}));

  EXPECT_THAT(ShownIn(0), ElementsAre(7, 9, kNullBlockId, kNullBlockId));
}

TEST_F(AheadTest, WhatIsInPlaceNeedsNoMapping) {
  ShowAndEnd(1, {1, 2});
  windows_->Begin(1);
  EXPECT_TRUE(Show(1, {1}));

  windows_->Expect(1, 2);
  windows_->StartAhead();
  EXPECT_TRUE(Show(1, {1, 2}));

  EXPECT_THAT(TakeRuns(), IsEmpty());
}

TEST_F(AheadTest, NothingIsExpectedBehindAFullWindow) {
  EXPECT_TRUE(Show(0, {7, 8, 9, 10}));
  TakeRuns();

  windows_->Expect(0, 11);
  windows_->StartAhead();

  windows_->Begin(1);
  EXPECT_TRUE(Show(1, {20, 21}));
  EXPECT_THAT(TakeRuns(), ElementsAre(MapRun{4, 20, 2}));
}

TEST_F(AheadTest, WithoutRoomNothingIsExpected) {
  memory_.LimitTo(1);

  windows_->Expect(0, 9);
  windows_->StartAhead();

  EXPECT_FALSE(Show(0, {7, 9}));
  EXPECT_THAT(TakeRuns(), IsEmpty());
  EXPECT_EQ(windows_->num_mapped(), 1);
}

TEST_F(AheadTest, WhatASequenceThatEndedExpectedIsFoundByTheNextOne) {
  windows_->Expect(0, 9);
  windows_->StartAhead();
  windows_->End(0);

  windows_->Begin(0);
  EXPECT_TRUE(Show(0, {7, 9}));

  EXPECT_THAT(ShownIn(0), ElementsAre(7, 9, kNullBlockId, kNullBlockId));
  EXPECT_EQ(windows_->counts().num_found, 1);
  EXPECT_EQ(windows_->counts().num_mapped_ahead, 1);
}

TEST_F(AheadTest, WhatFailedAheadIsMappedAnew) {
  FailNextMap();
  windows_->Expect(0, 9);
  windows_->StartAhead();

  EXPECT_TRUE(Show(0, {7, 9}));

  EXPECT_THAT(TakeRuns(), ElementsAre(MapRun{1, 9, 1}, MapRun{1, 9, 1}));
  EXPECT_THAT(ShownIn(0), ElementsAre(7, 9, kNullBlockId, kNullBlockId));
  EXPECT_EQ(windows_->num_mapped(), 2);
  EXPECT_EQ(windows_->counts().num_mapped_ahead, 0);
}

TEST_F(AheadTest, AfterAFailureExpectationsCountAgain) {
  FailNextMap();
  windows_->Expect(0, 9);
  windows_->StartAhead();
  EXPECT_TRUE(Show(0, {7, 9}));
  TakeRuns();

  windows_->Expect(0, 8);
  windows_->StartAhead();
  EXPECT_TRUE(Show(0, {7, 9, 8}));

  EXPECT_TRUE(OthersMapped());
  EXPECT_EQ(windows_->counts().num_mapped_ahead, 1);
}

class SpareTest : public KvWindowsTest {
 protected:
  void ExpectBeginning(SequenceHandle handle, const std::vector<BlockId>& block_ids) {
    windows_->ExpectBeginning(handle, block_ids);
    windows_->StartAhead();
  }
};

TEST_F(SpareTest, TheFirstBlocksOfANewSequenceAreInPlace) {
  ExpectBeginning(1, {7, 8, 5});

  windows_->Begin(1);
  EXPECT_TRUE(Show(1, {7, 8, 5}));

  EXPECT_THAT(TakeRuns(), ElementsAre(MapRun{4, 7, 2}, MapRun{6, 5, 1}));
  EXPECT_EQ(windows_->counts().num_mapped, 0);
  EXPECT_EQ(windows_->counts().num_mapped_ahead, 3);
  EXPECT_EQ(windows_->counts().num_found, 0);
}

TEST_F(SpareTest, ABlockThatWasMappedAheadCountsForOneSequence) {
  ExpectBeginning(1, {7});
  ShowAndEnd(1, {7});

  windows_->Begin(1);
  EXPECT_TRUE(Show(1, {7}));

  EXPECT_EQ(windows_->counts().num_mapped_ahead, 1);
  EXPECT_EQ(windows_->counts().num_found, 1);
}

TEST_F(SpareTest, WhatIsExpectedAgainIsMappedOnce) {
  ExpectBeginning(1, {7, 8, 5});
  ExpectBeginning(1, {7, 8, 5});
  ExpectBeginning(1, {7, 8, 6});

  windows_->Begin(1);
  EXPECT_TRUE(Show(1, {7, 8, 6}));

  EXPECT_THAT(TakeRuns(), ElementsAre(MapRun{4, 7, 2}, MapRun{6, 5, 1}, MapRun{6, 6, 1}));
}

TEST_F(SpareTest, AShorterSequenceLeavesTheRestInPlace) {
  ExpectBeginning(1, {7, 8, 5});

  windows_->Begin(1);
  EXPECT_TRUE(Show(1, {7}));
  EXPECT_TRUE(Show(1, {7, 9}));

  EXPECT_THAT(ShownIn(1), ElementsAre(7, 9, 5, kNullBlockId));
  EXPECT_EQ(windows_->counts().num_mapped, 1);
}

TEST_F(SpareTest, WrongGuessesAreMappedAnew) {
  ExpectBeginning(1, {7, 8, 5});

  windows_->Begin(1);
  EXPECT_TRUE(Show(1, {6, 8, 9}));
  windows_->Begin(2);
  EXPECT_TRUE(Show(2, {7}));

  EXPECT_THAT(ShownIn(1), ElementsAre(6, 8, 9, kNullBlockId));
  EXPECT_THAT(ShownIn(2), ElementsAre(7, kNullBlockId, kNullBlockId, kNullBlockId));
  EXPECT_EQ(windows_->counts().num_mapped, 3);
  EXPECT_EQ(windows_->counts().num_mapped_ahead, 1);
}

TEST_F(SpareTest, WhatAnEarlierSequenceLeftIsFound) {
  ShowAndEnd(1, {7, 8});
  ExpectBeginning(1, {7, 9});

  windows_->Begin(1);
  EXPECT_TRUE(Show(1, {7, 9}));

  EXPECT_THAT(TakeRuns(), ElementsAre(MapRun{5, 9, 1}));
  EXPECT_EQ(windows_->counts().num_found, 1);
  EXPECT_EQ(windows_->counts().num_mapped_ahead, 1);
}

// The hint names a window that is in use, which no right hint does.
TEST_F(SpareTest, ASequenceWhoseWindowWasTakenForSpareShowsItsBlocksAgain) {
  windows_->Begin(1);
  EXPECT_TRUE(Show(1, {1, 2, 3}));
  ExpectBeginning(1, {7, 2});
  windows_->Begin(2);
  EXPECT_TRUE(Show(2, {20}));  // waits until the beginning is mapped

  EXPECT_TRUE(Show(1, {1, 2, 3}));

  EXPECT_THAT(ShownIn(1), ElementsAre(1, 2, 3, kNullBlockId));
}

TEST_F(SpareTest, ALongGuessEndsWithTheWindow) {
  ExpectBeginning(0, {7, 8, 9, 10, 11, 12});

  windows_->Begin(1);
  EXPECT_TRUE(Show(1, {20}));

  EXPECT_THAT(ShownIn(0), ElementsAre(7, 8, 9, 10));
  EXPECT_THAT(ShownIn(1), ElementsAre(20, kNullBlockId, kNullBlockId, kNullBlockId));
}

TEST_F(SpareTest, WhatFailedAheadIsMappedByShow) {
  FailNextMap();
  ExpectBeginning(1, {7, 8, 5});

  windows_->Begin(1);
  EXPECT_TRUE(Show(1, {7, 8, 5}));

  EXPECT_THAT(ShownIn(1), ElementsAre(7, 8, 5, kNullBlockId));
  EXPECT_EQ(windows_->num_mapped(), 3);
  EXPECT_EQ(windows_->counts().num_mapped_ahead, 0);
}

TEST_F(SpareTest, ABeginningThatHasNoRoomIsNotMapped) {
  memory_.LimitTo(4);
  windows_->Begin(0);
  EXPECT_TRUE(Show(0, {1, 2}));
  TakeRuns();

  ExpectBeginning(1, {7, 8, 5});
  windows_->Begin(2);
  EXPECT_TRUE(Show(2, {3, 4}));

  EXPECT_THAT(TakeRuns(), ElementsAre(MapRun{8, 3, 2}));
  EXPECT_EQ(windows_->num_mapped(), 4);
}

TEST_F(SpareTest, TheSpareWindowIsTakenDownLast) {
  memory_.LimitTo(5);
  ExpectBeginning(0, {7, 8});
  ShowAndEnd(1, {1, 2});

  windows_->Begin(2);
  EXPECT_TRUE(Show(2, {3, 4}));

  EXPECT_THAT(ShownIn(0), ElementsAre(7, 8, kNullBlockId, kNullBlockId));
  EXPECT_EQ(windows_->counts().num_taken_down, 2);

  EXPECT_TRUE(Show(2, {3, 4, 5, 6}));

  EXPECT_EQ(windows_->counts().num_taken_down, 4);
  EXPECT_EQ(windows_->num_mapped(), 4);
}

class LimitTest : public KvWindowsTest {
 protected:
  LimitTest() { memory_.LimitTo(4); }
};

TEST_F(LimitTest, WindowsWithoutASequenceAreTakenDownForOthers) {
  ShowAndEnd(0, {1, 2, 3});

  windows_->Begin(1);
  EXPECT_TRUE(Show(1, {7, 8}));

  EXPECT_THAT(ShownIn(0), ElementsAre(kNullBlockId, kNullBlockId, kNullBlockId, kNullBlockId));
  EXPECT_EQ(windows_->num_mapped(), 2);
  EXPECT_EQ(windows_->counts().num_taken_down, 3);
}

TEST_F(LimitTest, AWindowThatWasTakenDownIsMappedAnew) {
  ShowAndEnd(0, {1, 2, 3});
  ShowAndEnd(1, {7, 8});

  windows_->Begin(0);
  EXPECT_TRUE(Show(0, {1, 2}));

  EXPECT_THAT(ShownIn(0), ElementsAre(1, 2, kNullBlockId, kNullBlockId));
}

TEST_F(LimitTest, WindowsWithASequenceStay) {
  windows_->Begin(0);
  EXPECT_TRUE(Show(0, {1, 2, 3}));
  windows_->Begin(1);

  EXPECT_FALSE(Show(1, {7, 8}));

  EXPECT_THAT(ShownIn(0), ElementsAre(1, 2, 3, kNullBlockId));
  EXPECT_THAT(ShownIn(1), ElementsAre(kNullBlockId, kNullBlockId, kNullBlockId, kNullBlockId));
}

TEST_F(LimitTest, WhereThereWasNoRoomThereIsWhenAnotherSequenceEnded) {
  windows_->Begin(0);
  EXPECT_TRUE(Show(0, {1, 2, 3}));
  windows_->Begin(1);
  EXPECT_FALSE(Show(1, {7, 9}));

  windows_->End(0);

  EXPECT_TRUE(Show(1, {7, 9}));
  EXPECT_THAT(ShownIn(1), ElementsAre(7, 9, kNullBlockId, kNullBlockId));
  EXPECT_EQ(windows_->num_mapped(), 2);
}

TEST_F(LimitTest, APlaceThatIsMappedAnewTakesNoRoom) {
  ShowAndEnd(0, {1, 2, 3, 4});

  windows_->Begin(0);
  EXPECT_TRUE(Show(0, {6, 7, 8}));
  windows_->Expect(0, 9);
  windows_->StartAhead();
  EXPECT_TRUE(Show(0, {6, 7, 8, 9}));

  EXPECT_EQ(windows_->counts().num_mapped_ahead, 1);
  EXPECT_EQ(windows_->num_mapped(), 4);
}

TEST_F(LimitTest, MorePlacesNeverShowSomethingThanMay) {
  for (BlockId block = 1; block < 20; ++block) {
    const auto handle = static_cast<SequenceHandle>(block % kNumWindows);
    windows_->Begin(handle);
    Show(handle, {block, static_cast<BlockId>(block + 1), static_cast<BlockId>(block + 3)});
    if (block % 2 == 0) {
      windows_->End(handle);
    }
    EXPECT_LE(memory_.num_shown(), 4);
    EXPECT_EQ(memory_.num_shown(), windows_->num_mapped());
  }
}

TEST_F(KvWindowsTest, AfterAMapThatFailedNothingIsBelievedShown) {
  ShowAndEnd(0, {1, 2});
  FailNextMap();
  windows_->Begin(0);

  EXPECT_FALSE(Show(0, {7, 8}));

  EXPECT_EQ(windows_->num_mapped(), 0);
  TakeRuns();
  EXPECT_TRUE(Show(0, {7, 8}));
  EXPECT_THAT(TakeRuns(), ElementsAre(MapRun{0, 7, 2}));
  EXPECT_THAT(ShownIn(0), ElementsAre(7, 8, kNullBlockId, kNullBlockId));
}

TEST_F(KvWindowsTest, WhatWasShownBeforeAMapThatFailedStays) {
  windows_->Begin(0);
  EXPECT_TRUE(Show(0, {7}));
  FailNextMap();
  EXPECT_FALSE(Show(0, {7, 9}));
  TakeRuns();

  EXPECT_TRUE(Show(0, {7, 9}));

  EXPECT_THAT(TakeRuns(), ElementsAre(MapRun{1, 9, 1}));
}

}  // namespace
}  // namespace quire
