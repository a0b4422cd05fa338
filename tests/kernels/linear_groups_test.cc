// How the panels of a linear layer are shared out.
#include "kernels/cpu/linear_groups.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace quire {
namespace {

constexpr int64_t kMany = int64_t{1} << 40;  // operations

TEST(LinearGroupsTest, GroupsHoldEveryPanelAndNoneIsEmpty) {
  for (const int64_t panels : {1, 2, 7, 8, 9, 100, 2004}) {
    for (const int64_t blocks : {1, 3, 50}) {
      for (const int64_t partial_sum_bytes : {0, 4096, 1 << 20, 1 << 30}) {
        for (const int threads : {1, 2, 64}) {
          for (const int64_t operations : {int64_t{1}, int64_t{10'000'000}, kMany}) {
            const PanelGroups groups =
                ChoosePanelGroups({.num_panels = panels,
                                   .num_blocks = blocks,
                                   .operations = operations,
                                   .partial_sum_bytes_per_panel = partial_sum_bytes,
                                   .num_threads = threads});
            EXPECT_GE(groups.panels_per_group * groups.num_groups, panels);
            EXPECT_LT(groups.panels_per_group * (groups.num_groups - 1), panels);
          }
        }
      }
    }
  }
}

TEST(LinearGroupsTest, SumsOfAGroupTakeAtMostFourMebibytes) {
  // An output matrix of 128,256 rows, a tile of sums for each 16 of 256 tokens.
  for (const int threads : {1, 2}) {
    const PanelGroups groups = ChoosePanelGroups({.num_panels = 2004,
                                                  .num_blocks = 1,
                                                  .operations = kMany,
                                                  .partial_sum_bytes_per_panel = int64_t{16} * 4096,
                                                  .num_threads = threads});
    EXPECT_LE(groups.panels_per_group * int64_t{16} * 4096, 4 << 20) << threads;
  }
}

TEST(LinearGroupsTest, OneThreadHasOneGroupWhereNoPartialSumsAreKept) {
  const PanelGroups groups = ChoosePanelGroups(
      {.num_panels = 2004, .num_blocks = 1, .operations = kMany, .num_threads = 1});
  EXPECT_EQ(groups.num_groups, 1);
}

TEST(LinearGroupsTest, ThreadsHaveFourTasksEachUnlessTheseAreTooSmall) {
  const PanelWork work = {
      .num_panels = 2004, .num_blocks = 1, .operations = kMany, .num_threads = 2};
  EXPECT_EQ(ChoosePanelGroups(work).num_groups, 8);
  PanelWork small = work;
  small.operations = 700'000;
  EXPECT_EQ(ChoosePanelGroups(small).num_groups, 3);
}

}  // namespace
}  // namespace quire
