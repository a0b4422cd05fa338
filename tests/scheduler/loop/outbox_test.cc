#include "scheduler/loop/outbox.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

using testing::ElementsAre;

SequenceUpdate Tokens(int32_t sequence_index,
                      int32_t first_position,
                      std::vector<TokenId> ids,
                      std::string text = "") {
  SequenceUpdate update;
  update.sequence_index = sequence_index;
  update.first_position = first_position;
  update.token_ids = std::move(ids);
  update.text = std::move(text);
  return update;
}

TEST(OutboxTest, TokensThatPileUpLeaveAsOneMessagePerSequence) {
  Outbox outbox({});

  SequenceUpdate two_tokens = Tokens(0, 1, {2, 3}, "bc");
  two_tokens.text_ends = {0, 2};
  SequenceUpdate one_token = Tokens(0, 0, {1}, "a");
  one_token.text_ends = {1};

  ASSERT_TRUE(outbox.Append(std::move(one_token), 10));
  ASSERT_TRUE(outbox.Append(Tokens(1, 0, {7}), 10));
  ASSERT_TRUE(outbox.Append(std::move(two_tokens), 11));
  const auto first = outbox.Take();
  const auto second = outbox.Take();

  EXPECT_EQ(first->first_position, 0);
  EXPECT_THAT(first->token_ids, ElementsAre(1, 2, 3));
  EXPECT_EQ(first->text, "abc");
  EXPECT_THAT(first->text_ends, ElementsAre(1, 1, 3));
  EXPECT_THAT(second->token_ids, ElementsAre(7));
  EXPECT_FALSE(outbox.Take().has_value());
}

TEST(OutboxTest, TheEndOfASequenceIsTakenWhateverWaits) {
  Outbox outbox({.max_tokens = 2, .max_bytes = 1000});
  EXPECT_FALSE(outbox.Append(Tokens(0, 0, {1, 2, 3}), 10));
  SequenceUpdate last = Tokens(0, 0, {1, 2, 3});
  last.end.emplace();

  EXPECT_TRUE(outbox.Append(std::move(last), 10));

  EXPECT_THAT(outbox.Take()->token_ids, ElementsAre(1, 2, 3));
}

TEST(OutboxTest, ALongUpdateLeavesInPieces) {
  Outbox outbox({});
  const size_t num_tokens = 2 * kMaxTokensPerMessage + 1;
  SequenceUpdate all = Tokens(3, 7, {});
  for (size_t i = 0; i < num_tokens; ++i) {
    all.token_ids.push_back(static_cast<TokenId>(i));
    all.text += i % 2 == 0 ? "ab" : "c";
    all.text_ends.push_back(static_cast<uint32_t>(all.text.size()));
    all.logprobs.push_back({.logprob = -static_cast<float>(i), .top = {}});
  }
  all.end.emplace();
  const std::string text = all.text;
  ASSERT_TRUE(outbox.Append(std::move(all), 10));

  std::string taken;
  int32_t position = 7;
  for (size_t size : {kMaxTokensPerMessage, kMaxTokensPerMessage, size_t{1}}) {
    const auto piece = outbox.Take();
    ASSERT_TRUE(piece.has_value());
    EXPECT_EQ(piece->sequence_index, 3);
    EXPECT_EQ(piece->first_position, position);
    ASSERT_EQ(piece->token_ids.size(), size);
    ASSERT_EQ(piece->text_ends.size(), size);
    ASSERT_EQ(piece->logprobs.size(), size);
    EXPECT_EQ(piece->token_ids[0], position - 7);
    EXPECT_EQ(piece->logprobs[0].logprob, -static_cast<float>(position - 7));
    EXPECT_EQ(piece->text_ends[0], position % 2 == 1 ? 2U : 1U);
    EXPECT_EQ(piece->text_ends.back(), piece->text.size());
    EXPECT_EQ(piece->end.has_value(), size == 1);
    taken += piece->text;
    position += static_cast<int32_t>(size);
  }
  EXPECT_EQ(taken, text);
  EXPECT_TRUE(outbox.empty());
}

TEST(OutboxTest, TokensWithMuchTextLeaveInPiecesOfSoManyBytes) {
  Outbox outbox({});
  const std::string text_of_token(kMaxMessageBytes / 3, 'x');
  SequenceUpdate all = Tokens(0, 0, {});
  for (TokenId id = 0; id < 5; ++id) {
    all.token_ids.push_back(id);
    all.text += text_of_token;
    all.text_ends.push_back(static_cast<uint32_t>(all.text.size()));
  }
  all.end.emplace();
  ASSERT_TRUE(outbox.Append(std::move(all), 10));
  SequenceUpdate one = Tokens(1, 0, {7}, std::string(2 * kMaxMessageBytes, 'y'));
  one.text_ends = {static_cast<uint32_t>(one.text.size())};
  one.end.emplace();
  ASSERT_TRUE(outbox.Append(std::move(one), 10));

  EXPECT_THAT(outbox.Take()->token_ids, ElementsAre(0, 1));
  EXPECT_THAT(outbox.Take()->token_ids, ElementsAre(2, 3));
  const auto last = outbox.Take();
  ASSERT_TRUE(last.has_value());
  EXPECT_THAT(last->token_ids, ElementsAre(4));
  EXPECT_EQ(last->text, text_of_token);
  EXPECT_TRUE(last->end.has_value());
  EXPECT_THAT(outbox.Take()->token_ids, ElementsAre(7));  // no message has less than a token
}

// They are not bounded, come before tokens that were there first, and leave in pieces.
TEST(OutboxTest, LogprobsOfThePromptLeaveFirst) {
  Outbox outbox({.max_tokens = 1, .max_bytes = 1 << 10});
  constexpr auto kNumLogprobs = static_cast<int32_t>(kMaxTokensPerMessage) + 1;
  SequenceUpdate prompt;
  prompt.prompt.logprobs.assign(kNumLogprobs, -1.0F);
  SequenceUpdate rest;
  rest.prompt = {.first_position = kNumLogprobs + 1, .logprobs = {-2.0F}};
  ASSERT_TRUE(outbox.Append(Tokens(0, 0, {7}), 20));
  ASSERT_TRUE(outbox.Append(prompt, 10));
  ASSERT_TRUE(outbox.Append(rest, 30));
  EXPECT_EQ(outbox.stalled_since(), 10);

  int32_t position = 1;
  for (const int32_t size : {kNumLogprobs - 1, 1, 1}) {
    const auto update = outbox.Take();
    ASSERT_TRUE(update.has_value());
    EXPECT_EQ(update->prompt.first_position, position);
    EXPECT_EQ(update->prompt.num_tokens(), size);
    EXPECT_TRUE(update->token_ids.empty());
    position += size;
  }
  EXPECT_THAT(outbox.Take()->token_ids, ElementsAre(7));
  EXPECT_TRUE(outbox.empty());
}

TEST(OutboxTest, TokensThatComeWhileOneMessageIsOnItsWayMakeAnother) {
  Outbox outbox({});
  ASSERT_TRUE(outbox.Append(Tokens(0, 0, {1}), 10));
  ASSERT_TRUE(outbox.Take().has_value());

  ASSERT_TRUE(outbox.Append(Tokens(0, 1, {2}), 11));
  const auto next = outbox.Take();

  EXPECT_EQ(next->first_position, 1);
  EXPECT_THAT(next->token_ids, ElementsAre(2));
}

TEST(OutboxTest, MergingKeepsLogprobsAndTheEnd) {
  Outbox outbox({});
  SequenceUpdate first = Tokens(0, 0, {1});
  first.logprobs = {{-0.5F, {}}};
  SequenceUpdate second = Tokens(0, 1, {2});
  second.logprobs = {{-0.25F, {{2, -0.25F}}}};
  second.end.emplace();
  second.end->num_output_tokens = 2;

  ASSERT_TRUE(outbox.Append(std::move(first), 0));
  ASSERT_TRUE(outbox.Append(std::move(second), 0));
  const auto merged = outbox.Take();

  ASSERT_EQ(merged->logprobs.size(), 2U);
  EXPECT_EQ(merged->logprobs[1].logprob, -0.25F);
  ASSERT_TRUE(merged->end.has_value());
  EXPECT_EQ(merged->end->num_output_tokens, 2);
}

TEST(OutboxTest, AppendRefusesWhatExceedsTheTokenLimit) {
  Outbox outbox({.max_tokens = 3, .max_bytes = 1000});

  EXPECT_TRUE(outbox.Append(Tokens(0, 0, {1, 2}), 0));
  EXPECT_FALSE(outbox.Append(Tokens(0, 2, {3, 4}), 0));
  EXPECT_TRUE(outbox.Append(Tokens(0, 2, {3}), 0));
  ASSERT_TRUE(outbox.Take().has_value());
  EXPECT_TRUE(outbox.Append(Tokens(0, 3, {4, 5, 6}), 0));
}

TEST(OutboxTest, AppendRefusesWhatExceedsTheByteLimit) {
  Outbox outbox({.max_tokens = 100, .max_bytes = 20});

  EXPECT_TRUE(outbox.Append(Tokens(0, 0, {1}, std::string(16, 'x')), 0));
  EXPECT_FALSE(outbox.Append(Tokens(0, 1, {2}, ""), 0));
  ASSERT_TRUE(outbox.Take().has_value());
  EXPECT_TRUE(outbox.Append(Tokens(0, 1, {2}, ""), 0));
}

TEST(OutboxTest, IsStalledFromTheFirstMessageThatWaitsUntilOneGetsThrough) {
  Outbox outbox({});

  EXPECT_EQ(outbox.stalled_since(), kInfiniteFuture);
  ASSERT_TRUE(outbox.Append(Tokens(0, 0, {1}), 10));
  ASSERT_TRUE(outbox.Take().has_value());
  ASSERT_TRUE(outbox.Append(Tokens(0, 1, {2}), 20));
  EXPECT_EQ(outbox.stalled_since(), 10);
  outbox.OnSent(30);
  EXPECT_EQ(outbox.stalled_since(), 30);
  ASSERT_TRUE(outbox.Take().has_value());
  outbox.OnSent(40);
  EXPECT_EQ(outbox.stalled_since(), kInfiniteFuture);
}

TEST(OutboxTest, ClearDropsEverythingAndMakesRoom) {
  Outbox outbox({.max_tokens = 2, .max_bytes = 100});
  ASSERT_TRUE(outbox.Append(Tokens(0, 0, {1, 2}), 10));

  outbox.Clear();

  EXPECT_TRUE(outbox.empty());
  EXPECT_EQ(outbox.stalled_since(), kInfiniteFuture);
  EXPECT_TRUE(outbox.Append(Tokens(0, 0, {1, 2}), 11));
}

}  // namespace
}  // namespace quire
