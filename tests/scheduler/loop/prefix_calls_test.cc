#include "scheduler/loop/prefix_calls.h"

#include <optional>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "scheduler/loop/scheduler_loop.h"
#include "tests/scheduler/loop/fake_worker_client.h"

namespace quire {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

constexpr StepLimits kLimits = {.num_blocks = 17,
                                .block_size_tokens = 4,
                                .max_sequences = 8,
                                .max_tokens_per_step = 8,
                                .max_model_len = 60,
                                .vocab_size = 100};

LoopConfig Config() {
  LoopConfig config;
  config.core.prefix_caching = true;
  return config;
}

class PrefixCallsTest : public testing::Test {
 protected:
  PrefixCallsTest()
      : client_(&inbox_, kLimits),
        loop_(Config(),
              {.inbox = &inbox_,
               .workers = &client_,
               .state = &state_,
               .observer = &observer_,
               .clock = [this] { return now_; }}) {}

  using PinAnswer = std::optional<absl::StatusOr<PrefixInfo>>;

  // The answer comes into *answer.
  void Pin(int32_t num_tokens, PinAnswer* answer, bool waits_for_workers = false) {
    PinCall call;
    call.waits_for_workers = waits_for_workers;
    call.token_ids.assign(static_cast<size_t>(num_tokens), 7);
    call.answer = [answer](const absl::StatusOr<PrefixInfo>& info) {
      ASSERT_FALSE(answer->has_value()) << "answered twice";
      *answer = info;
    };
    ASSERT_TRUE(inbox_.Add(std::move(call)).ok());
  }
  absl::Status Unpin(RequestId id) {
    std::optional<absl::Status> answer;
    inbox_.Post(
        UnpinCall{.id = id, .answer = [&answer](const absl::Status& status) { answer = status; }});
    Turn();
    return answer.value();
  }
  std::vector<PrefixInfo> List() {
    std::vector<PrefixInfo> answer;
    inbox_.Post(ListPrefixesCall{
        .answer = [&answer](const std::vector<PrefixInfo>& prefixes) { answer = prefixes; }});
    Turn();
    return answer;
  }
  bool Turn() { return loop_.Turn(absl::ZeroDuration()); }
  void RunDry() {
    for (Turn(); client_.unanswered().has_value(); Turn()) {
      client_.Answer();
    }
  }

  Instant now_ = kNanosPerSecond;
  Inbox inbox_;
  FakeWorkerClient client_;
  ServingState state_;
  LoopObserver observer_;
  SchedulerLoop loop_;
};

TEST_F(PrefixCallsTest, PinningIsAnsweredWhenItIsDone) {
  client_.BeginEpoch();
  PinAnswer answer;
  Pin(17, &answer);
  Turn();
  EXPECT_FALSE(answer.has_value()) << "it takes two steps";
  EXPECT_EQ(List().front().state, PrefixState::kComputing);

  RunDry();

  ASSERT_TRUE(answer.has_value() && answer->ok());
  EXPECT_EQ((*answer)->num_tokens, 17);
  EXPECT_EQ((*answer)->num_blocks, 5);
  EXPECT_EQ(List().front().state, PrefixState::kPinned);
  EXPECT_EQ(state_.Get().stats.num_pinned_blocks, 5);

  PinAnswer again;
  Pin(17, &again);
  Turn();
  ASSERT_TRUE(again.has_value() && again->ok());
  EXPECT_EQ((*again)->id, (*answer)->id);
  EXPECT_TRUE(Unpin((*answer)->id).ok());
  EXPECT_THAT(List(), IsEmpty());
}

TEST_F(PrefixCallsTest, TheFiguresKnowOfAPrefixWhenItsCallIsAnswered) {
  client_.BeginEpoch();
  int32_t num_pinned = -1;
  PinCall call;
  call.token_ids.assign(17, 7);
  call.answer = [this, &num_pinned](const absl::StatusOr<PrefixInfo>& /*info*/) {
    num_pinned = state_.Get().stats.num_pinned_prefixes;
  };
  ASSERT_TRUE(inbox_.Add(std::move(call)).ok());

  RunDry();

  EXPECT_EQ(num_pinned, 1);
}

TEST_F(PrefixCallsTest, WhatCannotBePinnedIsRefusedWithItsReason) {
  PinAnswer early;
  Pin(8, &early);
  Turn();
  EXPECT_EQ(ReasonOf(early->status()), "LOADING");
  client_.BeginEpoch();
  for (const auto& [num_tokens, reason] : {std::pair(3, "PREFIX_TOO_SHORT"),
                                           std::pair(60, "PROMPT_TOO_LONG"),
                                           std::pair(36, "PINNED_SHARE")}) {
    PinAnswer answer;
    Pin(num_tokens, &answer);
    Turn();
    EXPECT_EQ(ReasonOf(answer->status()), reason);
  }
  EXPECT_EQ(ReasonOf(Unpin(RequestId(77))), "PREFIX");
  EXPECT_TRUE(absl::IsNotFound(Unpin(RequestId(77))));
}

TEST_F(PrefixCallsTest, UnpinningAnswersWhoWaitsForIt) {
  client_.BeginEpoch();
  PinAnswer answer;
  Pin(17, &answer);
  Turn();

  EXPECT_TRUE(Unpin(List().front().id).ok());

  EXPECT_EQ(ReasonOf(answer->status()), "UNPINNED");
  RunDry();
  EXPECT_EQ(state_.Get().stats.num_used_blocks, 0);
}

TEST_F(PrefixCallsTest, ALossOfWorkersIsWaitedOut) {
  client_.BeginEpoch();
  PinAnswer answer;
  Pin(17, &answer);
  Turn();
  client_.LoseGroup();
  Turn();
  EXPECT_FALSE(answer.has_value());
  EXPECT_EQ(List().front().state, PrefixState::kWaiting);

  client_.BeginEpoch();
  RunDry();

  ASSERT_TRUE(answer.has_value() && answer->ok());
}

TEST_F(PrefixCallsTest, APrefixThatCrashesItsWorkersIsRefusedWithHowOften) {
  PinAnswer answer;
  client_.BeginEpoch();
  Pin(17, &answer);
  for (int crash = 0; crash < 5; ++crash) {
    ASSERT_FALSE(answer.has_value()) << crash;
    Turn();
    client_.LoseGroup();
    Turn();
    client_.BeginEpoch();
  }
  Turn();

  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ReasonOf(answer->status()), "WORKER_CRASH");
  EXPECT_EQ(MetadataOf(answer->status(), "crashes"), "5");
  EXPECT_THAT(List(), IsEmpty());
}

TEST_F(PrefixCallsTest, APrefixOfASchedulerBeforeWaitsForTheFirstWorkers) {
  PinAnswer refused;
  PinAnswer restored;
  Pin(17, &refused);
  Pin(17, &restored, /*waits_for_workers=*/true);
  Turn();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(ReasonOf(refused->status()), "LOADING");
  EXPECT_FALSE(restored.has_value());

  client_.BeginEpoch();
  RunDry();

  ASSERT_TRUE(restored.has_value() && restored->ok());
  EXPECT_EQ(List().front().state, PrefixState::kPinned);
}

// A scheduler that is started again stands by for its predecessor for a moment.
TEST_F(PrefixCallsTest, APrefixOfASchedulerBeforeWaitsForTheTakeoverToo) {
  PinAnswer early;
  PinAnswer late;
  PinAnswer refused;
  Pin(17, &early, /*waits_for_workers=*/true);
  inbox_.Post(GroupStandby{.scheduler_incarnation = 2});
  Pin(9, &late, /*waits_for_workers=*/true);
  Pin(9, &refused);
  Turn();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(ReasonOf(refused->status()), "SUPERSEDED");

  inbox_.Post(GroupStandby{.scheduler_incarnation = 0});
  client_.BeginEpoch();
  RunDry();

  EXPECT_TRUE(early.has_value() && early->ok());
  EXPECT_TRUE(late.has_value() && late->ok());
}

TEST_F(PrefixCallsTest, WhoWaitsForTheFirstWorkersHearsOfTheEnd) {
  PinAnswer restored;
  Pin(17, &restored, /*waits_for_workers=*/true);
  Turn();

  inbox_.Post(Stop{});
  Turn();

  ASSERT_TRUE(restored.has_value());
  EXPECT_EQ(ReasonOf(restored->status()), "DRAINING");
}

TEST_F(PrefixCallsTest, NobodyIsLeftWithoutAnAnswer) {
  client_.BeginEpoch();
  PinAnswer waiting;
  PinAnswer late;
  Pin(17, &waiting);
  Turn();

  inbox_.Post(AbortAll{Error(absl::StatusCode::kUnavailable, "DRAINING", "server: ends")});
  Turn();
  Pin(8, &late);
  Turn();

  EXPECT_EQ(ReasonOf(waiting->status()), "DRAINING");
  EXPECT_EQ(ReasonOf(late->status()), "DRAINING");
}

TEST_F(PrefixCallsTest, WorkersThatDoNotComeBackEndTheWaiting) {
  client_.BeginEpoch();
  PinAnswer answer;
  Pin(17, &answer);
  Turn();
  client_.LoseGroup();
  Turn();
  now_ += LoopConfig().worker_timeout_ns;
  Turn();
  EXPECT_EQ(ReasonOf(answer->status()), "WORKER_TIMEOUT");
}

// Restored prefixes come from a file. No client would ask for them again, so they must wait for
// late workers.
TEST_F(PrefixCallsTest, RestoredPrefixesOutlastWorkersThatComeLate) {
  PinAnswer restored;
  Pin(17, &restored, /*waits_for_workers=*/true);
  Turn();
  now_ += LoopConfig().worker_timeout_ns;
  Turn();
  EXPECT_FALSE(restored.has_value());

  client_.BeginEpoch();
  RunDry();

  ASSERT_TRUE(restored.has_value());
  EXPECT_TRUE(restored->ok()) << restored->status();
}

}  // namespace
}  // namespace quire
