#include "scheduler/core/token_budget.h"

#include "gtest/gtest.h"

namespace quire {
namespace {

TEST(TokenBudgetTest, GivesOutWhatIsAskedForWhileItLasts) {
  TokenBudget budget(10);

  EXPECT_EQ(budget.Take(4), 4);
  EXPECT_EQ(budget.num_tokens_left(), 6);
  EXPECT_FALSE(budget.is_spent());
}

TEST(TokenBudgetTest, GivesOutTheRestWhenMoreIsAskedFor) {
  TokenBudget budget(10);
  budget.Take(7);

  EXPECT_EQ(budget.Take(5), 3);
  EXPECT_TRUE(budget.is_spent());
  EXPECT_EQ(budget.Take(1), 0);
}

}  // namespace
}  // namespace quire
