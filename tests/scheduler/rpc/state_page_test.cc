#include "scheduler/rpc/state_page.h"

#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <variant>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <google/protobuf/util/json_util.h>

#include "common/step/step_plan_check.h"
#include "scheduler/rpc/state_message.h"
#include "tests/scheduler/rpc/tiny_served_model.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr size_t kMaxBytes = 64 << 10;

v1::GetStateResponse Parse(const std::string& json) {
  v1::GetStateResponse message;
  const auto status = google::protobuf::util::JsonStringToMessage(json, &message);
  EXPECT_TRUE(status.ok()) << status.ToString() << "\n" << json;
  return message;
}

class StatePageTest : public ::testing::Test {
 protected:
  // The loop answers what waits in the inbox. Returns how many asked.
  int AnswerWith(const LoopState& state) {
    int num_calls = 0;
    for (LoopEvent& event : inbox_.TakeAll(absl::ZeroDuration())) {
      std::get<GetStateCall>(event).answer(std::make_shared<LoopState>(state));
      ++num_calls;
    }
    return num_calls;
  }

  static LoopState Moment(Instant taken_at) {
    LoopState state;
    state.taken_at = taken_at;
    state.stats.num_blocks = 2;
    state.block_map = {.blocks_per_cell = 1,
                       .cells = {{.num_active = 1, .holder = RequestId(7)}, {}},
                       .holders = {{.id = RequestId(7), .num_blocks = 1}}};
    state.request_ids = {"seven"};
    return state;
  }

  ServedModel model_ = TinyServedModel();
  Inbox inbox_;
  ServingState state_;
  StatePage page_{&model_, &inbox_, &state_};
};

TEST_F(StatePageTest, WhoeverAsksFirstGetsNoMapAndTheNextOneWhatTheLoopSaidMeanwhile) {
  const std::string first = page_.Json(kNanosPerSecond);
  AnswerWith(Moment(kNanosPerSecond));
  const std::string second = page_.Json(kNanosPerSecond);

  EXPECT_FALSE(Parse(first).has_block_map());
  EXPECT_EQ(Parse(first).model(), "tiny");
  EXPECT_EQ(Parse(second).SerializeAsString(),
            StateMessage(model_, state_.Get(), Moment(kNanosPerSecond)).SerializeAsString());
  EXPECT_THAT(second, HasSubstr("\"num_cached\":[0,0]"));
}

TEST_F(StatePageTest, TheLoopIsAskedOnceAtATime) {
  page_.Json(1);
  page_.Json(1);

  EXPECT_EQ(AnswerWith(Moment(1)), 1);
  page_.Json(1);
  EXPECT_EQ(AnswerWith(Moment(1)), 1);
}

TEST_F(StatePageTest, AMomentOfLongAgoIsNotShown) {
  page_.Json(1);
  AnswerWith(Moment(1));

  EXPECT_TRUE(Parse(page_.Json(StatePage::kMaxAgeNs)).has_block_map());
  EXPECT_FALSE(Parse(page_.Json(StatePage::kMaxAgeNs + 1)).has_block_map());
}

TEST_F(StatePageTest, TheLargestPoolHasAnAnswerOfLessThan64KiB) {
  LoopState state;
  state.taken_at = 1;
  state.block_map.blocks_per_cell = kMaxBlocksLimit / StateCalls::kLimits.max_cells;
  const int32_t part = state.block_map.blocks_per_cell / 4;
  for (int32_t i = 0; i < StateCalls::kLimits.max_cells; ++i) {
    state.block_map.cells.push_back({.num_cached = part,
                                     .num_active = part,
                                     .num_leaving = part,
                                     .num_shared = part,
                                     .holder = RequestId(1'000'000'000'000'000 + i)});
  }
  const int32_t most = std::numeric_limits<int32_t>::max();
  for (int32_t i = 0; i < StateCalls::kLimits.max_holders; ++i) {
    state.block_map.holders.push_back({.id = RequestId(1'000'000'000'000'000 + i),
                                       .is_prefix = false,
                                       .num_blocks = most,
                                       .num_sequences = most,
                                       .num_prompt_tokens = most,
                                       .num_output_tokens = most});
    state.request_ids.emplace_back(128, 'x');
  }
  const int64_t most64 = std::numeric_limits<int64_t>::max();
  const KvMemory windows = {
      .backend = KvBackend::kVmm, .page_bytes = most64, .num_places = most64, .max_places = most64};
  state_.SetRanks(
      std::vector<RankStatus>(8, {.address = std::string(108, '"'), .kv_memory = windows}));
  page_.Json(1);
  AnswerWith(state);

  const std::string json = page_.Json(1);

  EXPECT_TRUE(Parse(json).has_block_map());
  EXPECT_LT(json.size(), kMaxBytes);
  EXPECT_LT(Parse(json).ByteSizeLong(), kMaxBytes);
}

TEST_F(StatePageTest, AnAnswerMayComeAfterTheEndOfThePage) {
  { StatePage(&model_, &inbox_, &state_).Json(1); }

  EXPECT_EQ(AnswerWith(Moment(1)), 1);
}

TEST_F(StatePageTest, WhatOperatorsNamedIsNoMarkup) {
  state_.SetRanks({{.address = "<script>\n\x1b[2J\""}});

  const std::string json = page_.Json(1);

  EXPECT_THAT(json, Not(HasSubstr("<script>")));
  EXPECT_THAT(json, Not(HasSubstr("\x1b")));
  EXPECT_EQ(Parse(json).load().ranks(0).address(), "<script>\n\x1b[2J\"");
}

}  // namespace
}  // namespace quire
