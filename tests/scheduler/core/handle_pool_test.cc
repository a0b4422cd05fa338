#include "scheduler/core/handle_pool.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(HandlePoolTest, HandsOutEachHandleOnce) {
  HandlePool pool(3);

  EXPECT_EQ(pool.Take(), 0U);
  EXPECT_EQ(pool.Take(), 1U);
  EXPECT_EQ(pool.Take(), 2U);
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_EQ(pool.num_in_use(), 3);
}

TEST(HandlePoolTest, AHandleGivenBackIsNotFreeBeforeItsReleaseIsPlanned) {
  HandlePool pool(1);
  SequenceHandle handle = pool.Take();

  pool.GiveBack(handle);

  EXPECT_FALSE(pool.is_in_use(handle));
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_EQ(pool.num_to_release(), 1);
  EXPECT_EQ(pool.num_in_use(), 0);

  EXPECT_THAT(pool.TakeReleases(), ElementsAre(0));

  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(pool.Take(), 0U);
}

TEST(HandlePoolTest, TheNextHandleStaysTheNextThroughReleases) {
  HandlePool pool(4);
  EXPECT_EQ(pool.Next(), 0U);
  pool.Take();
  pool.Take();
  EXPECT_EQ(pool.Next(), 2U);

  pool.GiveBack(0);
  pool.GiveBack(1);
  pool.TakeReleases();

  EXPECT_EQ(pool.Next(), 2U);
  EXPECT_EQ(pool.Take(), 2U);
  EXPECT_EQ(pool.Take(), 1U) << "then the one released last";
}

TEST(HandlePoolTest, WithoutAFreeHandleNoneIsTheNext) {
  HandlePool pool(1);
  pool.Take();
  EXPECT_EQ(pool.Next(), std::nullopt);

  pool.GiveBack(0);
  EXPECT_EQ(pool.Next(), std::nullopt) << "not released yet";
  pool.TakeReleases();

  EXPECT_EQ(pool.Next(), 0U);
}

TEST(HandlePoolTest, ReleasesAreTakenOnce) {
  HandlePool pool(2);
  pool.GiveBack(pool.Take());
  pool.TakeReleases();

  EXPECT_THAT(pool.TakeReleases(), IsEmpty());
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(HandlePoolDeathTest, RefusesWhatOnlyAWrongProgramDoes) {
  HandlePool pool(1);

  EXPECT_DEATH(pool.GiveBack(0), "is_in_use");
  EXPECT_DEATH(pool.GiveBack(1), "is_in_use");
  SequenceHandle handle = pool.Take();
  EXPECT_DEATH(pool.Take(), "free_.empty");
  pool.GiveBack(handle);
  EXPECT_DEATH(pool.GiveBack(handle), "is_in_use");
}

}  // namespace
}  // namespace quire
