#include "scheduler/core/crash_suspects.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const RequestId kA(1);
const RequestId kB(2);

class CrashSuspectsTest : public ::testing::Test {
 protected:
  std::vector<RequestId> Crash(const std::vector<LostSlice>& slices) {
    return suspects_.OnCrash(slices);
  }
  std::vector<RequestId> Suspects() const {
    std::vector<RequestId> ids;
    for (const auto& [num_crashes, id] : suspects_.suspects()) {
      ids.push_back(id);
    }
    return ids;
  }

  CrashSuspects suspects_;
};

TEST_F(CrashSuspectsTest, TheSecondCrashAtOnePlaceMakesASuspectAndTheFifthEndsIt) {
  const LostSlice slice = {.id = kA, .begin = 4, .end = 5};
  EXPECT_THAT(Crash({slice}), IsEmpty());
  EXPECT_FALSE(suspects_.IsSuspect(kA)) << "a kill from outside looks the same";
  EXPECT_THAT(Crash({slice}), IsEmpty());
  EXPECT_THAT(Suspects(), ElementsAre(kA));
  EXPECT_THAT(Crash({slice}), IsEmpty());
  EXPECT_THAT(Crash({slice}), IsEmpty());

  EXPECT_THAT(Crash({slice}), ElementsAre(kA));

  EXPECT_THAT(Suspects(), IsEmpty());
  EXPECT_THAT(suspects_.records(), IsEmpty());
}

TEST_F(CrashSuspectsTest, WhoComputesItsPlaceIsCleared) {
  const LostSlice a = {.id = kA, .begin = 4, .end = 8};
  const LostSlice b = {.id = kB, .begin = 0, .end = 3};
  Crash({a, b});
  Crash({a, b});

  suspects_.OnComputed(kA, 0, 8);
  suspects_.OnComputed(kB, 0, 2);

  EXPECT_THAT(Suspects(), ElementsAre(kB));
}

// Beside other requests a prompt is cut at another place each time. The token that crashes is in
// every suspect range.
TEST_F(CrashSuspectsTest, APlaceShrinksToWhatIsCommonAndNotComputed) {
  Crash({{.id = kA, .begin = 0, .end = 100}});
  suspects_.OnComputed(kA, 0, 40);
  Crash({{.id = kA, .begin = 40, .end = 60}});
  Crash({{.id = kA, .begin = 0, .end = 50}});
  suspects_.OnComputed(kA, 0, 49);
  EXPECT_THAT(Suspects(), ElementsAre(kA)) << "token 49 is left";
  EXPECT_THAT(Crash({{.id = kA, .begin = 48, .end = 50}}), IsEmpty());

  EXPECT_THAT(Crash({{.id = kA, .begin = 49, .end = 90}}), ElementsAre(kA));
}

// A kill from outside during a recomputation says nothing of the token at which the request
// crashed.
TEST_F(CrashSuspectsTest, ACrashAmongTokensOfBeforeTakesNothingFromNewOnes) {
  const LostSlice decoding = {.id = kA, .begin = 50, .end = 51, .num_computed_ever = 50};
  const LostSlice recomputing = {.id = kA, .begin = 0, .end = 16, .num_computed_ever = 50};
  Crash({decoding});
  Crash({recomputing});
  EXPECT_THAT(Suspects(), IsEmpty());

  suspects_.OnComputed(kA, 0, 48);
  Crash({{.id = kA, .begin = 48, .end = 51, .num_computed_ever = 50}});

  EXPECT_THAT(Suspects(), ElementsAre(kA));
}

TEST_F(CrashSuspectsTest, WhatCrashesOnlyWhenItIsRecomputedEndsToo) {
  const LostSlice recomputing = {.id = kA, .begin = 16, .end = 32, .num_computed_ever = 50};
  Crash({{.id = kA, .begin = 50, .end = 51, .num_computed_ever = 50}});  // a kill from outside
  Crash({recomputing});
  Crash({recomputing});
  EXPECT_THAT(Suspects(), ElementsAre(kA));
  Crash({recomputing});
  EXPECT_THAT(Crash({recomputing}), IsEmpty());

  EXPECT_THAT(Crash({recomputing}), ElementsAre(kA));
}

TEST_F(CrashSuspectsTest, KillsAtDifferentPlacesMakeNoSuspect) {
  for (int32_t begin : {0, 16, 8, 32, 24, 0}) {
    Crash({{.id = kA, .begin = begin, .end = begin + 8, .num_computed_ever = 50}});
    EXPECT_THAT(Suspects(), IsEmpty());
  }
}

// The request is computed again in smaller slices. Before they reach its suspect range, another
// request's crash meets them.
TEST_F(CrashSuspectsTest, ACrashBeforeARangeDoesNotMakeItForgotten) {
  const LostSlice lost = {.id = kA, .begin = 8, .end = 16, .num_computed_ever = 20};
  const LostSlice before = {.id = kA, .begin = 0, .end = 8, .num_computed_ever = 20};
  Crash({lost});
  Crash({before});
  EXPECT_THAT(Suspects(), IsEmpty());
  Crash({lost});
  EXPECT_THAT(Suspects(), ElementsAre(kA));
}

TEST_F(CrashSuspectsTest, WhatCrashesBeforeAKnownPlaceIsFoundAsWell) {
  const LostSlice before = {.id = kA, .begin = 0, .end = 8, .num_computed_ever = 20};
  Crash({{.id = kA, .begin = 8, .end = 16, .num_computed_ever = 20}});
  Crash({before});
  Crash({before});
  EXPECT_THAT(Suspects(), ElementsAre(kA));
}

TEST_F(CrashSuspectsTest, EachSequenceHasARangeAndOneInCommonIsEnough) {
  Crash({{.id = kA, .sequence_index = 0, .begin = 8, .end = 9},
         {.id = kA, .sequence_index = 1, .begin = 8, .end = 9}});
  Crash({{.id = kA, .sequence_index = 1, .begin = 0, .end = 9}});
  EXPECT_THAT(Suspects(), ElementsAre(kA));

  suspects_.OnComputed(kA, 0, 9);  // sequence 0 was not in the second crash
  EXPECT_THAT(Suspects(), ElementsAre(kA));
  suspects_.OnComputed(kA, 1, 9);
  EXPECT_THAT(Suspects(), IsEmpty());
}

// Beams are recomputed in another order than the one in which they grew.
TEST_F(CrashSuspectsTest, ASequenceIsComparedWithOthersOfItsRequestIfItHasNoRange) {
  Crash({{.id = kA, .sequence_index = 1, .begin = 8, .end = 9}});

  Crash({{.id = kA, .sequence_index = 0, .begin = 0, .end = 9}});

  EXPECT_THAT(Suspects(), ElementsAre(kA));
}

// One sequence crashes at a token, and the other sequence computes that token next.
TEST_F(CrashSuspectsTest, CrashesOfSequencesInTurnsAreAddedUp) {
  const LostSlice first = {.id = kA, .sequence_index = 0, .begin = 8, .end = 9};
  const LostSlice second = {.id = kA, .sequence_index = 1, .begin = 8, .end = 9};
  Crash({first});
  Crash({second});
  Crash({first});
  Crash({second});

  EXPECT_THAT(Crash({first}), ElementsAre(kA));
}

TEST_F(CrashSuspectsTest, ASequenceThatEndedIsNotWaitedFor) {
  const LostSlice slice = {.id = kA, .sequence_index = 1, .begin = 8, .end = 9};
  Crash({slice});
  Crash({slice});

  suspects_.Forget(kA, 0);
  EXPECT_THAT(Suspects(), ElementsAre(kA));
  suspects_.Forget(kA, 1);

  EXPECT_THAT(Suspects(), IsEmpty());
  EXPECT_THAT(suspects_.records(), IsEmpty());
}

TEST_F(CrashSuspectsTest, WhoWasNotInTheStepIsNotCounted) {
  const LostSlice a = {.id = kA, .begin = 4, .end = 5};
  const LostSlice b = {.id = kB, .begin = 4, .end = 5};
  Crash({a, b});
  Crash({a});
  Crash({});

  EXPECT_THAT(Suspects(), ElementsAre(kA));
}

}  // namespace
}  // namespace quire
