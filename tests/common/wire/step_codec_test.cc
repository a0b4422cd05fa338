#include "common/wire/step_codec.h"

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "tests/common/step/random_plan.h"

namespace quire {
namespace {

constexpr int kNumRandomPlans = 500;
constexpr int kMutationsPerPlan = 40;

StepPlan SteadyDecode(int32_t num_sequences) {
  StepPlan plan;
  plan.header = {.scheduler_incarnation = 1, .group_epoch = 2, .step_id = 3};
  for (int32_t i = 0; i < num_sequences; ++i) {
    plan.slices.push_back(
        {.handle = static_cast<SequenceHandle>(i), .num_tokens = 1, .new_block_ids = {}});
  }
  return plan;
}

size_t EncodedBytes(const StepPlan& plan) {
  v1::StepRequest request;
  EncodePlan(plan, &request);
  return request.ByteSizeLong();
}

TEST(StepCodecTest, EveryPlanComesBackAsItWas) {
  Random random(1);
  for (int i = 0; i < kNumRandomPlans; ++i) {
    StepPlan plan = RandomPlan(random);
    v1::StepRequest request;
    EncodePlan(plan, &request);
    v1::StepRequest received;
    ASSERT_TRUE(received.ParseFromString(request.SerializeAsString()));

    auto decoded = DecodePlan(received);

    ASSERT_TRUE(decoded.ok()) << decoded.status();
    ASSERT_EQ(*decoded, plan);
    ASSERT_EQ(decoded->digest, DigestOf(*decoded));
  }
}

TEST(StepCodecTest, EveryResultComesBackAsItWas) {
  Random random(2);
  for (int i = 0; i < kNumRandomPlans; ++i) {
    StepResult result = RandomResult(random);
    v1::StepResponse response;
    EncodeResult(result, &response);
    v1::StepResponse received;
    ASSERT_TRUE(received.ParseFromString(response.SerializeAsString()));

    auto decoded = DecodeResult(received);

    ASSERT_TRUE(decoded.ok()) << decoded.status();
    ASSERT_EQ(*decoded, result);
  }
}

TEST(StepCodecTest, ASteadyDecodeCostsTwelveBytesASequence) {
  // Both sizes have length prefixes of equally many varint bytes.
  size_t growth = EncodedBytes(SteadyDecode(400)) - EncodedBytes(SteadyDecode(300));

  EXPECT_EQ(growth, 100U * 12U);
}

TEST(StepCodecTest, EncodingIntoAUsedMessageLeavesNothingOfTheOldOne) {
  Random random(3);
  v1::StepRequest request;
  EncodePlan(RandomPlan(random), &request);
  StepPlan plan = SteadyDecode(2);

  EncodePlan(plan, &request);

  EXPECT_EQ(*DecodePlan(request), plan);
}

struct HostilePlan {
  std::string name;
  std::function<void(v1::StepRequest&)> spoil;
  std::string field;
};

TEST(StepCodecTest, ColumnsThatDisagreeAreRefusedByName) {
  const std::vector<HostilePlan> cases = {
      {"copy without target", [](auto& r) { r.add_copy_src(1); }, "copy_dst"},
      {"target without source", [](auto& r) { r.add_copy_dst(1); }, "copy_dst"},
      {"slice without length", [](auto& r) { r.add_slice_handle(1); }, "slice_num_tokens"},
      {"length without slice", [](auto& r) { r.add_slice_num_tokens(1); }, "slice_num_tokens"},
      {"blocks of no slice", [](auto& r) { r.add_new_block_ids(5); }, "slice_num_new_blocks"},
      {"fewer blocks than counted",
       [](auto& r) {
         r.add_slice_handle(1);
         r.add_slice_num_tokens(1);
         r.add_slice_num_new_blocks(2);
         r.add_new_block_ids(5);
       },
       "slice_num_new_blocks"},
      {"counts whose sum wraps 32 bits to the right number",
       [](auto& r) {
         for (uint32_t count : {0xFFFFFFFFU, 2U}) {
           r.add_slice_handle(count);
           r.add_slice_num_tokens(1);
           r.add_slice_num_new_blocks(count);
         }
         r.add_new_block_ids(5);
       },
       "slice_num_new_blocks"},
      {"forced token without slice", [](auto& r) { r.add_forced_token_id(1); }, "forced_token_id"},
      {"forced token of a slice that is not there",
       [](auto& r) {
         r.add_forced_slice(0);
         r.add_forced_token_id(1);
       },
       "forced_slice"},
      {"two forced tokens of one slice",
       [](auto& r) {
         r.add_slice_handle(1);
         r.add_slice_num_tokens(1);
         r.add_slice_num_new_blocks(0);
         for (int i = 0; i < 2; ++i) {
           r.add_forced_slice(0);
           r.add_forced_token_id(1);
         }
       },
       "forced_slice"},
      {"next block without slice", [](auto& r) { r.add_next_block_id(1); }, "next_block_id"},
      {"next block of a slice that is not there",
       [](auto& r) {
         r.add_next_block_slice(0);
         r.add_next_block_id(1);
       },
       "next_block_slice"},
      {"two next blocks of one slice",
       [](auto& r) {
         r.add_slice_handle(1);
         r.add_slice_num_tokens(1);
         r.add_slice_num_new_blocks(0);
         for (int i = 0; i < 2; ++i) {
           r.add_next_block_slice(0);
           r.add_next_block_id(1);
         }
       },
       "next_block_slice"},
      {"bias without value",
       [](auto& r) { r.add_introductions()->mutable_sampling()->add_bias_token_ids(1); },
       "introductions.sampling.bias_values"},
  };
  for (const HostilePlan& hostile : cases) {
    SCOPED_TRACE(hostile.name);
    v1::StepRequest request;
    hostile.spoil(request);

    absl::Status status = DecodePlan(request).status();

    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(status), "MALFORMED_PROTO");
    EXPECT_TRUE(absl::StartsWith(status.message(), hostile.field + ": ")) << status;
  }
}

// Adds a slice with num_tokens log-probabilities of its prompt, but likeliest tokens for one only.
void AddScored(uint32_t num_tokens, int32_t num_top, v1::StepResponse& response) {
  response.add_prompt_handle(1);
  response.add_prompt_first_position(1);
  response.add_prompt_num_tokens(num_tokens);
  response.add_prompt_num_top(static_cast<uint32_t>(num_top));
  response.mutable_prompt_logprob()->Resize(static_cast<int>(num_tokens), -1.0F);
  response.mutable_prompt_top_token_id()->Resize(num_top, 5);
  response.mutable_prompt_top_logprob()->Resize(num_top, -1.0F);
}

TEST(StepCodecTest, ResultColumnsThatDisagreeAreRefused) {
  const std::vector<std::function<void(v1::StepResponse&)>> cases = {
      [](auto& r) { r.add_handle(1); },
      [](auto& r) { r.add_token_id(1); },
      [](auto& r) { r.add_logprob(1); },
      [](auto& r) { r.add_finite(1); },
      [](auto& r) { r.add_num_top(0); },
      [](auto& r) { r.add_top_token_id(1); },
      [](auto& r) { r.add_top_logprob(1); },
      [](auto& r) { r.add_prompt_handle(1); },
      [](auto& r) { r.add_prompt_first_position(1); },
      [](auto& r) { r.add_prompt_num_tokens(0); },
      [](auto& r) { r.add_prompt_num_top(0); },
      [](auto& r) { r.add_prompt_logprob(1); },
      [](auto& r) { r.add_prompt_top_token_id(1); },
      [](auto& r) { r.add_prompt_top_logprob(1); },
      [](auto& r) { AddScored(/*num_tokens=*/2, /*num_top=*/1, r); },
      [](auto& r) { AddScored(/*num_tokens=*/1, /*num_top=*/kMaxLogprobs + 1, r); }};
  for (const auto& spoil : cases) {
    v1::StepResponse response;
    EncodeResult({.header = {}, .plan_digest = 1, .sampled = {SampledToken{}}, .timings = {}},
                 &response);
    ASSERT_TRUE(DecodeResult(response).ok());
    spoil(response);

    EXPECT_EQ(ReasonOf(DecodeResult(response).status()), "MALFORMED_PROTO");
  }
}

// Changed, cut and lengthened bytes do not parse, are refused, or give some plan. The decoder never
// reads or writes past an array, which ASan would report.
TEST(StepCodecTest, DamagedBytesNeverCrashTheDecoder) {
  Random random(4);
  int num_decoded = 0;
  for (int i = 0; i < kNumRandomPlans; ++i) {
    StepPlan plan = RandomPlan(random);
    v1::StepRequest request;
    EncodePlan(plan, &request);
    const std::string bytes = request.SerializeAsString();
    for (int m = 0; m < kMutationsPerPlan; ++m) {
      std::string damaged = bytes;
      for (int32_t edits = random.Between(1, 4); edits > 0; --edits) {
        auto at = static_cast<size_t>(random.Below(static_cast<int32_t>(damaged.size()) + 1));
        auto byte = static_cast<char>(random.Next());
        switch (random.Below(3)) {
          case 0:
            damaged.insert(at, 1, byte);
            break;
          case 1:
            damaged.erase(at, 1);
            break;
          default:
            damaged.replace(at, at < damaged.size() ? 1 : 0, 1, byte);
        }
      }
      v1::StepRequest received;
      if (received.ParseFromString(damaged) && DecodePlan(received).ok()) {
        ++num_decoded;
      }
    }
  }

  EXPECT_GT(num_decoded, 0);
  EXPECT_LT(num_decoded, kNumRandomPlans * kMutationsPerPlan);
}

// Flips random bits of the encoded answer: the decoder returns the answer that was sent, or refuses
// it.
TEST(StepCodecTest, AnAnswerWithAFlippedBitIsNotBelieved) {
  Random random(5);
  int num_refused = 0;
  for (int i = 0; i < kNumRandomPlans; ++i) {
    const StepResult result = RandomResult(random);
    v1::StepResponse response;
    EncodeResult(result, &response);
    std::string bytes = response.SerializeAsString();
    for (int m = 0; m < kMutationsPerPlan; ++m) {
      const auto at = static_cast<size_t>(random.Below(static_cast<int32_t>(bytes.size())));
      const auto bit = static_cast<char>(1 << random.Below(8));
      bytes[at] = static_cast<char>(bytes[at] ^ bit);
      v1::StepResponse received;
      if (received.ParseFromString(bytes)) {
        const auto decoded = DecodeResult(received);
        num_refused += decoded.ok() ? 0 : 1;
        ASSERT_TRUE(!decoded.ok() || *decoded == result) << "byte " << at;
      }
      bytes[at] = static_cast<char>(bytes[at] ^ bit);
    }
  }

  EXPECT_GT(num_refused, kNumRandomPlans);
}

}  // namespace
}  // namespace quire
