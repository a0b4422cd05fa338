#include "scheduler/rpc/state_answers.h"

#include <memory>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "proto/v1/admin.pb.h"

#include "scheduler/rpc/wire_message.h"
#include "tests/scheduler/rpc/tiny_served_model.h"

namespace quire {
namespace {

using testing::SizeIs;

class StateAnswersTest : public testing::Test {
 protected:
  void Ask(Instant now) {
    answers_.Get(now, [this](const grpc::ByteBuffer& bytes) {
      v1::GetStateResponse message;
      EXPECT_TRUE(ParseMessage(bytes, &message).ok());
      seen_.push_back(message);
    });
  }

  // The loop answers what waits in the inbox. Returns how many asked.
  int AnswerAt(Instant taken_at) {
    int num_calls = 0;
    for (LoopEvent& event : inbox_.TakeAll(absl::ZeroDuration())) {
      auto moment = std::make_shared<LoopState>();
      moment->taken_at = taken_at;
      std::get<GetStateCall>(event).answer(moment);
      ++num_calls;
    }
    return num_calls;
  }

  ServedModel model_ = TinyServedModel();
  Inbox inbox_;
  ServingState state_;
  StateAnswers answers_{&model_, &inbox_, &state_};
  std::vector<v1::GetStateResponse> seen_;
};

TEST_F(StateAnswersTest, TheLoopIsAskedOnceForAllThatWait) {
  for (int i = 0; i < 5; ++i) {
    Ask(kNanosPerSecond);
  }
  EXPECT_THAT(seen_, SizeIs(0));

  EXPECT_EQ(AnswerAt(kNanosPerSecond), 1);

  ASSERT_THAT(seen_, SizeIs(5));
  EXPECT_EQ(seen_.back().time_us(), kNanosPerSecond / kNanosPerMicro);
  EXPECT_TRUE(seen_.back().has_steps());
}

TEST_F(StateAnswersTest, ACallSoonAfterIsAnsweredWithoutTheLoop) {
  Ask(kNanosPerSecond);
  AnswerAt(kNanosPerSecond);
  state_.SetGroup(ServingState::Group::kReady);

  Ask(kNanosPerSecond + StateCalls::kIntervalNs - 1);
  EXPECT_THAT(seen_, SizeIs(2));
  EXPECT_EQ(AnswerAt(2 * kNanosPerSecond), 0);
  Ask(kNanosPerSecond + StateCalls::kIntervalNs);
  EXPECT_THAT(seen_, SizeIs(2));
  EXPECT_EQ(AnswerAt(2 * kNanosPerSecond), 1);

  ASSERT_THAT(seen_, SizeIs(3));
  EXPECT_TRUE(seen_[1].load().ready()) << "which is of now";
  EXPECT_EQ(seen_[1].time_us(), kNanosPerSecond / kNanosPerMicro);
  EXPECT_EQ(seen_[2].time_us(), 2 * kNanosPerSecond / kNanosPerMicro);
}

TEST_F(StateAnswersTest, WhereAsManyWaitAsMayTheNextOneDoesNot) {
  for (size_t i = 0; i < StateAnswers::kMaxWaiting + 1; ++i) {
    Ask(1);
  }
  ASSERT_THAT(seen_, SizeIs(1));
  EXPECT_FALSE(seen_[0].has_steps());
  EXPECT_EQ(AnswerAt(1), 1);
  EXPECT_THAT(seen_, SizeIs(StateAnswers::kMaxWaiting + 1));

  for (size_t i = 0; i < StateAnswers::kMaxWaiting + 1; ++i) {
    Ask(10 * kNanosPerSecond);
  }

  ASSERT_THAT(seen_, SizeIs(StateAnswers::kMaxWaiting + 2));
  EXPECT_TRUE(seen_.back().has_steps());  // that of before
  AnswerAt(10 * kNanosPerSecond);
}

}  // namespace
}  // namespace quire
