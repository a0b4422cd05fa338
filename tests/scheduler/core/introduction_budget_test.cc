#include "scheduler/core/introduction_budget.h"

#include <optional>
#include <ostream>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/scheduler/core/core_fixture.h"

namespace quire {
namespace {

using testing::ElementsAre;

// How many sequences a step introduced, and how many slices it has.
struct Counts {
  size_t num_introductions;
  size_t num_slices;

  friend bool operator==(const Counts&, const Counts&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Counts& counts) {
    return out << counts.num_introductions << " of " << counts.num_slices;
  }
};

class IntroductionBudgetTest : public CoreFixture {
 protected:
  // A budget that one introduction fills.
  IntroductionBudgetTest() {
    state_.config.introduction_budget_bytes = 1;
    StepLimits limits = limits_;
    limits.num_blocks = 40;
    BeginEpoch(limits);
  }

  Counts PlanAndApply() {
    const std::optional<StepPlan> plan = Plan();
    if (!plan.has_value()) {
      return {0, 0};
    }
    Apply(Answer(5));
    return {plan->introductions.size(), plan->slices.size()};
  }

  // Whether a group may introduce sequences of so many bytes, one by one.
  static std::vector<bool> Ask(IntroductionBudget& budget,
                               const SequenceGroup& group,
                               const std::vector<int64_t>& bytes) {
    std::vector<bool> answers;
    for (const int64_t each : bytes) {
      answers.push_back(budget.Allows(group, each));
      if (answers.back()) {
        budget.Take(group, each);
      } else {
        budget.OnRefused(group);
      }
    }
    return answers;
  }
};

TEST_F(IntroductionBudgetTest, RequestsStartOneAStep) {
  Add({.id = 1, .prompt = 2});
  Add({.id = 2, .prompt = 2});
  Add({.id = 3, .prompt = 2});

  EXPECT_EQ(PlanAndApply(), (Counts{1, 1}));
  EXPECT_EQ(PlanAndApply(), (Counts{1, 2}));
  EXPECT_EQ(PlanAndApply(), (Counts{1, 3}));
  EXPECT_EQ(PlanAndApply(), (Counts{0, 3}));
}

// The leader's last block is shared until each fork has taken its copy.
TEST_F(IntroductionBudgetTest, ForksAreIntroducedOneAStepAndTheirLeaderWaits) {
  Add({.id = 1, .prompt = 6, .max_tokens = 3, .num_sequences = 4});

  EXPECT_EQ(PlanAndApply(), (Counts{1, 1})) << "the leader computes the prompt";
  EXPECT_EQ(PlanAndApply(), (Counts{1, 1})) << "a fork";
  EXPECT_EQ(PlanAndApply(), (Counts{1, 2})) << "a fork, and the one before goes on";
  EXPECT_EQ(PlanAndApply(), (Counts{1, 4})) << "the last fork, and all others";
}

TEST_F(IntroductionBudgetTest, TheFirstIntroductionIsAllowedWhateverItsLength) {
  const SequenceGroup& group = Add({.id = 1});
  IntroductionBudget budget(100, std::nullopt);

  EXPECT_THAT(Ask(budget, group, {500, 1}), ElementsAre(true, false));
}

TEST_F(IntroductionBudgetTest, IntroductionsFillTheBudget) {
  const SequenceGroup& group = Add({.id = 1});
  IntroductionBudget budget(100, std::nullopt);

  EXPECT_THAT(Ask(budget, group, {60, 41, 40, 1}), ElementsAre(true, false, true, false));
}

TEST_F(IntroductionBudgetTest, AGroupThatWasRefusedHasHalfOfTheNextStep) {
  const SequenceGroup& first = Add({.id = 1});
  const SequenceGroup& second = Add({.id = 2});
  IntroductionBudget budget(100, std::nullopt);
  Ask(budget, first, {50, 50});
  EXPECT_THAT(Ask(budget, second, {30}), ElementsAre(false));

  IntroductionBudget next(100, budget.owed_next());

  EXPECT_THAT(Ask(next, first, {50, 50}), ElementsAre(true, false));
  EXPECT_THAT(Ask(next, second, {30, 30}), ElementsAre(true, false));
}

TEST_F(IntroductionBudgetTest, ItsFirstIntroductionFitsInAnyCase) {
  const SequenceGroup& first = Add({.id = 1});
  const SequenceGroup& second = Add({.id = 2});
  IntroductionBudget budget(100, second.rank());
  Ask(budget, first, {100});

  EXPECT_THAT(Ask(budget, second, {500, 1}), ElementsAre(true, false));
}

TEST_F(IntroductionBudgetTest, TheTurnGoesRoundAllGroupsThatAreRefused) {
  const SequenceGroup& first = Add({.id = 1});
  const SequenceGroup& second = Add({.id = 2});
  const SequenceGroup& third = Add({.id = 3});
  std::optional<ScheduleRank> owed;
  std::vector<uint64_t> turns;
  for (int i = 0; i < 4; ++i) {
    IntroductionBudget budget(100, owed);
    for (const SequenceGroup* group : {&first, &second, &third}) {
      Ask(budget, *group, {100, 100});
    }
    owed = budget.owed_next();
    turns.push_back(owed.has_value() ? owed->id.value() : 0);
  }

  EXPECT_THAT(turns, ElementsAre(1, 2, 3, 0));
}

}  // namespace
}  // namespace quire
