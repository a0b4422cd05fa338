#include "scheduler/rpc/task_pool.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"

namespace quire {
namespace {

using testing::ElementsAre;

constexpr TenantShares::Bounds kBounds{
    .fresh = {.num_requests = 8, .num_bytes = 80},
    .resumed = {.num_requests = 8, .num_bytes = 80},
    .has_shares = true,
};

// A pool of one thread, which stands until LetGo.
class TaskPoolTest : public testing::Test {
 protected:
  explicit TaskPoolTest(const TenantShares::Bounds& bounds = kBounds)
      : pool_(std::make_unique<TaskPool>(1, bounds)) {
    EXPECT_TRUE(pool_
                    ->Submit({.run =
                                  [this] {
                                    is_held_.Notify();
                                    may_go_on_.WaitForNotification();
                                  }})
                    .ok());
    is_held_.WaitForNotification();
  }
  ~TaskPoolTest() override { LetGo(); }

  // The reason of a refusal, or "".
  std::string Offer(const std::string& owner, int64_t num_bytes = 0, bool is_resumed = false) {
    return ReasonOf(pool_->Submit({.run = [this, owner] { order_.push_back(owner); },
                                   .owner = owner,
                                   .num_bytes = num_bytes,
                                   .is_resumed = is_resumed}));
  }

  // Runs what waits.
  void LetGo() {
    if (pool_ != nullptr) {
      may_go_on_.Notify();
      pool_.reset();
    }
  }

  std::vector<std::string> order_;
  absl::Notification is_held_;
  absl::Notification may_go_on_;
  std::unique_ptr<TaskPool> pool_;
};

TEST_F(TaskPoolTest, OwnersTakeTurnsInTheOrderInWhichTheyCame) {
  for (const char* owner : {"many", "many", "many", "few", "one", "few"}) {
    EXPECT_EQ(Offer(owner), "");
  }
  LetGo();

  EXPECT_THAT(order_, ElementsAre("many", "few", "one", "many", "few", "many"));
}

TEST_F(TaskPoolTest, AnOwnerLeavesRoomForOthers) {
  EXPECT_EQ(Offer("greedy", 40), "");
  EXPECT_EQ(Offer("greedy", 1), "TENANT_LIMIT");
  EXPECT_EQ(Offer("other", 40), "");
  EXPECT_EQ(Offer("third", 1), "QUEUE_FULL");
  EXPECT_EQ(pool_->num_bytes(), 80);
  EXPECT_EQ(Offer("greedy", 50, /*is_resumed=*/true), "");
}

TEST_F(TaskPoolTest, IsNotIdleWhileATaskWaitsOrRuns) {
  EXPECT_FALSE(pool_->is_idle());  // the one that stands
  EXPECT_EQ(Offer("waits"), "");
  may_go_on_.Notify();

  while (!pool_->is_idle()) {
  }

  EXPECT_THAT(order_, ElementsAre("waits"));
  pool_.reset();
}

class TaskPoolWithoutSharesTest : public TaskPoolTest {
 protected:
  TaskPoolWithoutSharesTest()
      : TaskPoolTest({.fresh = kBounds.fresh, .resumed = kBounds.resumed}) {}
};

TEST_F(TaskPoolWithoutSharesTest, WhoComesFirstIsServedFirst) {
  for (const char* owner : {"many", "many", "few"}) {
    EXPECT_EQ(Offer(owner, 20), "");
  }
  LetGo();

  EXPECT_THAT(order_, ElementsAre("many", "many", "few"));
}

}  // namespace
}  // namespace quire
