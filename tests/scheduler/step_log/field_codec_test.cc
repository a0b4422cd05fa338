#include "scheduler/step_log/field_codec.h"

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "scheduler/step_log/byte_stream.h"
#include "tests/support/random.h"

namespace quire {
namespace {

template <typename T>
std::string BytesOf(const T& value) {
  ByteWriter out;
  Put(value, out);
  return std::string(out.bytes());
}

// Returns nullopt if the bytes are not exactly one T.
template <typename T>
std::optional<T> ValueOf(std::string_view bytes) {
  ByteReader in(bytes);
  T value{};
  Get(in, value);
  return in.ok() && in.at_end() ? std::make_optional(value) : std::nullopt;
}

template <typename T>
void ExpectSurvives(const T& value) {
  const std::optional<T> back = ValueOf<T>(BytesOf(value));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(*back, value);
}

template <typename T>
uint64_t LayoutOf(const T& value) {
  FoldHash layout;
  AddLayout(value, layout);
  return layout.value();
}

TEST(FieldCodecTest, NumbersSurviveAtTheirLimits) {
  ExpectSurvives(std::numeric_limits<int64_t>::min());
  ExpectSurvives(std::numeric_limits<int64_t>::max());
  ExpectSurvives(std::numeric_limits<uint64_t>::max());
  ExpectSurvives(std::numeric_limits<int32_t>::min());
  ExpectSurvives(std::numeric_limits<uint32_t>::max());
  ExpectSurvives(int32_t{-1});
  ExpectSurvives(true);
  ExpectSurvives(-0.0F);
  ExpectSurvives(std::numeric_limits<double>::infinity());
  ExpectSurvives(RequestId(1ULL << 63));
  ExpectSurvives(std::string("a\0b", 3));
  ExpectSurvives(std::optional<int32_t>());
  ExpectSurvives(std::optional<int32_t>(7));
}

TEST(FieldCodecTest, SmallNumbersAreSmall) {
  EXPECT_EQ(BytesOf(int32_t{-64}).size(), 1U);
  EXPECT_EQ(BytesOf(int32_t{63}).size(), 1U);
  EXPECT_EQ(BytesOf(int32_t{64}).size(), 2U);
  EXPECT_EQ(BytesOf(uint64_t{127}).size(), 1U);
}

// Every field has another value, so that two exchanged fields are found.
TEST(FieldCodecTest, EveryFieldOfARequestSurvives) {
  Request request;
  request.id = RequestId(11);
  request.prompt_token_ids = {5, 0, 1 << 30};
  request.sampling.temperature = 0.5F;
  request.sampling.top_k = 12;
  request.sampling.top_p = 0.25F;
  request.sampling.min_p = 0.125F;
  request.sampling.repetition_penalty = 1.5F;
  request.sampling.presence_penalty = -1.0F;
  request.sampling.frequency_penalty = -2.0F;
  request.sampling.logit_bias = {{3, -100.0F}, {4, 1.0F}};
  request.sampling.num_logprobs = 13;
  request.sampling.num_prompt_logprobs = 23;
  request.sampling.min_tokens = 14;
  request.sampling.banned_before_min_tokens = {15, 16};
  request.sampling.seed = 17;
  request.num_sequences = 18;
  request.beam_search =
      BeamOptions{.num_beams = 6, .length_penalty = -0.5, .early_stopping = EarlyStopping::kNever};
  request.max_tokens = 19;
  request.stop_token_ids = {20};
  request.cache_salt = "salt";
  request.bypasses_prefix_cache = true;
  request.num_known_prompt_logprobs = 22;
  request.arrival = -21;

  const std::optional<Request> back = ValueOf<Request>(BytesOf(request));

  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->id, request.id);
  EXPECT_EQ(back->prompt_token_ids, request.prompt_token_ids);
  EXPECT_EQ(back->sampling, request.sampling);
  EXPECT_EQ(back->num_sequences, 18);
  EXPECT_EQ(FieldsOf(*back->beam_search), FieldsOf(*request.beam_search));
  EXPECT_EQ(back->max_tokens, 19);
  EXPECT_EQ(back->stop_token_ids, request.stop_token_ids);
  EXPECT_EQ(back->cache_salt, "salt");
  EXPECT_TRUE(back->bypasses_prefix_cache);
  EXPECT_EQ(back->num_known_prompt_logprobs, 22);
  EXPECT_EQ(back->arrival, -21);
  EXPECT_EQ(back->deadline, kInfiniteFuture);
}

TEST(FieldCodecTest, ValuesOutOfRangeFail) {
  EXPECT_FALSE(ValueOf<int32_t>(BytesOf(int64_t{1} << 31)).has_value());
  EXPECT_FALSE(ValueOf<uint32_t>(BytesOf(uint64_t{1} << 32)).has_value());
  EXPECT_FALSE(ValueOf<bool>(BytesOf(256U)).has_value());
  EXPECT_TRUE(ValueOf<PreemptionMode>(BytesOf(1U)).has_value());
  const auto beyond = static_cast<uint32_t>(LastOf(PreemptionMode{})) + 1;
  EXPECT_FALSE(ValueOf<PreemptionMode>(BytesOf(beyond)).has_value());
}

TEST(FieldCodecTest, BytesThatEndTooSoonFail) {
  const std::string bytes = BytesOf(SampledToken{.handle = 300, .top_logprobs = {{1, 2.0F}}});
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(ValueOf<SampledToken>(std::string_view(bytes).substr(0, size)).has_value());
  }
  EXPECT_TRUE(ValueOf<SampledToken>(bytes).has_value());
}

TEST(FieldCodecTest, VarintsOfMoreThan64BitsFail) {
  EXPECT_TRUE(ValueOf<uint64_t>(std::string(9, '\xff') + '\x01').has_value());
  EXPECT_FALSE(ValueOf<uint64_t>(std::string(9, '\xff') + '\x02').has_value());
  EXPECT_FALSE(ValueOf<uint64_t>(std::string(10, '\xff') + '\x00').has_value());
}

// A count of 2^60 with no elements behind it.
TEST(FieldCodecTest, AVectorIsNoLongerThanItsBytes) {
  EXPECT_FALSE(ValueOf<std::vector<int32_t>>(BytesOf(uint64_t{1} << 60)).has_value());
  EXPECT_FALSE(ValueOf<std::string>(BytesOf(uint64_t{1} << 60)).has_value());
}

TEST(FieldCodecTest, RandomBytesDoNoHarm) {
  Random random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes(static_cast<size_t>(random.Below(80)), '\0');
    for (char& byte : bytes) {
      byte = static_cast<char>(random.OneIn(3) ? random.Next() : random.Below(4));
    }
    if (const auto request = ValueOf<Request>(bytes); request.has_value()) {
      EXPECT_LE(request->prompt_token_ids.size(), bytes.size());
    }
    if (const auto result = ValueOf<StepResult>(bytes); result.has_value()) {
      EXPECT_LE(result->sampled.size(), bytes.size());
    }
  }
}

TEST(FieldCodecTest, LayoutsTellKindsAndCountsOfFieldsApart) {
  EXPECT_EQ(LayoutOf(StepHeader{1, 2, 3}), LayoutOf(StepHeader{}));
  EXPECT_NE(LayoutOf(StepHeader{}), LayoutOf(Hash128{}));  // three and two of one kind
  EXPECT_NE(LayoutOf(int32_t{}), LayoutOf(uint32_t{}));
  EXPECT_NE(LayoutOf(int32_t{}), LayoutOf(int64_t{}));
  EXPECT_NE(LayoutOf(float{}), LayoutOf(uint32_t{}));
  EXPECT_NE(LayoutOf(std::vector<int32_t>{}), LayoutOf(std::optional<int32_t>{}));
}

}  // namespace
}  // namespace quire
