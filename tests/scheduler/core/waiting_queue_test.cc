#include "scheduler/core/waiting_queue.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/requests.h"

namespace quire {
namespace {

using ::testing::ElementsAre;

class WaitingQueueTest : public ::testing::Test {
 protected:
  std::vector<uint64_t> Ids() const {
    std::vector<uint64_t> ids;
    for (const SequenceGroup* group : queue_.groups()) {
      ids.push_back(group->id().value());
    }
    return ids;
  }

  void TearDown() override { queue_.CheckInvariants(); }

  SequenceGroup one_{MakeRequest({.id = 1, .prompt = 10})};
  SequenceGroup two_{MakeRequest({.id = 2, .prompt = 20})};
  SequenceGroup three_{MakeRequest({.id = 3, .prompt = 30})};
  WaitingQueue queue_;
};

TEST_F(WaitingQueueTest, IsFirstInFirstOut) {
  queue_.PushBack(one_);
  queue_.PushBack(two_);

  EXPECT_EQ(&queue_.front(), &one_);
  queue_.PopFront();
  EXPECT_EQ(&queue_.front(), &two_);
  queue_.PopFront();
  EXPECT_TRUE(queue_.empty());
}

TEST_F(WaitingQueueTest, ReturningGroupsTakeThePlaceOfTheirArrival) {
  queue_.PushBack(three_);

  queue_.Return(two_);
  queue_.Return(one_);

  EXPECT_THAT(Ids(), ElementsAre(1, 2, 3));
}

TEST_F(WaitingQueueTest, AGroupMayReturnBehindAnOlderOne) {
  queue_.PushBack(one_);
  queue_.PushBack(three_);

  queue_.Return(two_);

  EXPECT_THAT(Ids(), ElementsAre(1, 2, 3));
}

TEST_F(WaitingQueueTest, RemoveTakesAGroupOutOfTheMiddle) {
  queue_.PushBack(one_);
  queue_.PushBack(two_);
  queue_.PushBack(three_);

  queue_.Remove(two_);

  EXPECT_THAT(Ids(), ElementsAre(1, 3));
  EXPECT_EQ(queue_.num_prompt_tokens(), 40);
}

TEST_F(WaitingQueueTest, CountsThePromptTokensOfThoseThatWait) {
  queue_.PushBack(one_);
  queue_.Return(two_);
  EXPECT_EQ(queue_.num_prompt_tokens(), 30);

  queue_.PopFront();
  EXPECT_EQ(queue_.num_prompt_tokens(), 20);
}

TEST_F(WaitingQueueTest, RefusesMoreRequestsThanItsBound) {
  CoreConfig config{.max_queued_requests = 1};
  Request request = MakeRequest({.id = 9});
  EXPECT_EQ(queue_.RefusalOf(request, config), WaitingQueue::Refusal::kNone);

  queue_.PushBack(one_);

  EXPECT_EQ(queue_.RefusalOf(request, config), WaitingQueue::Refusal::kFull);
}

TEST_F(WaitingQueueTest, RefusesMoreTokensThanItsBound) {
  CoreConfig config{.max_queued_tokens = 15};
  queue_.PushBack(one_);

  EXPECT_EQ(queue_.RefusalOf(MakeRequest({.id = 9, .prompt = 5}), config),
            WaitingQueue::Refusal::kNone);
  EXPECT_EQ(queue_.RefusalOf(MakeRequest({.id = 9, .prompt = 6}), config),
            WaitingQueue::Refusal::kTokensFull);
}

using WaitingQueueDeathTest = WaitingQueueTest;

TEST_F(WaitingQueueDeathTest, RefusesWhatBreaksItsOrder) {
  queue_.PushBack(two_);

  EXPECT_DEATH(queue_.PushBack(one_), "id");
  EXPECT_DEATH(queue_.PushBack(two_), "id");
  EXPECT_DEATH(queue_.Return(two_), "id");
  EXPECT_DEATH(queue_.Remove(one_), "place");
  EXPECT_DEATH(queue_.Remove(three_), "place");
}

TEST_F(WaitingQueueDeathTest, RefusesToPopFromNothing) { EXPECT_DEATH(queue_.PopFront(), "empty"); }

}  // namespace
}  // namespace quire
