#include "scheduler/sim/trace.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "scheduler/sim/length_model.h"
#include "scheduler/sim/sim_random.h"

namespace quire {
namespace {

struct Dataset {
  std::string name;
  LengthShape shape;
};

class LengthModelTest : public testing::TestWithParam<Dataset> {};

TEST_P(LengthModelTest, MeansAreThePapersWithinOnePercent) {
  const LengthShape& shape = GetParam().shape;
  const LengthModel model(shape);
  SimRandom random(7);
  constexpr int kDraws = 400'000;
  double prompt = 0;
  double output = 0;

  for (int i = 0; i < kDraws; ++i) {
    const Lengths lengths = model.Draw(random);
    prompt += lengths.prompt_tokens;
    output += lengths.output_tokens;
  }

  EXPECT_NEAR(prompt / kDraws, shape.mean_prompt, 0.01 * shape.mean_prompt);
  EXPECT_NEAR(output / kDraws, shape.mean_output, 0.01 * shape.mean_output);
  EXPECT_NEAR(model.mean_prompt(), shape.mean_prompt, 1e-4 * shape.mean_prompt);
  EXPECT_NEAR(model.mean_output(), shape.mean_output, 1e-4 * shape.mean_output);
}

TEST_P(LengthModelTest, EveryDrawKeepsTheRulesAndSomeComeNearThem) {
  const LengthRules rules = GetParam().shape.rules;
  const LengthModel model(GetParam().shape);
  SimRandom random(8);
  Lengths least = {.prompt_tokens = 1 << 20, .output_tokens = 1 << 20};

  for (int i = 0; i < 200'000; ++i) {
    const Lengths lengths = model.Draw(random);
    least.prompt_tokens = std::min(least.prompt_tokens, lengths.prompt_tokens);
    least.output_tokens = std::min(least.output_tokens, lengths.output_tokens);
    ASSERT_LE(lengths.prompt_tokens, rules.max_prompt);
    ASSERT_LE(lengths.prompt_tokens + lengths.output_tokens, rules.max_total);
  }

  EXPECT_GE(least.prompt_tokens, rules.min_prompt);
  EXPECT_LE(least.prompt_tokens, rules.min_prompt + 2);
  EXPECT_GE(least.output_tokens, rules.min_output);
  EXPECT_LE(least.output_tokens, rules.min_output + 2);
}

INSTANTIATE_TEST_SUITE_P(Datasets,
                         LengthModelTest,
                         testing::Values(Dataset{"ShareGpt", ShareGptLike()},
                                         Dataset{"Alpaca", AlpacaLike()},
                                         Dataset{"Translation", TranslationLike()}),
                         [](const auto& i) { return i.param.name; });

TEST(LengthModelShapeTest, RulesReachTheirLimitsInTheHeavyTail) {
  const LengthModel model(ShareGptLike());
  SimRandom random(9);
  int32_t longest_prompt = 0;
  int32_t longest_total = 0;

  for (int i = 0; i < 200'000; ++i) {
    const Lengths lengths = model.Draw(random);
    longest_prompt = std::max(longest_prompt, lengths.prompt_tokens);
    longest_total = std::max(longest_total, lengths.prompt_tokens + lengths.output_tokens);
  }

  EXPECT_GE(longest_prompt, 1020);
  EXPECT_GE(longest_total, 2040);
}

TraceOptions Options(uint64_t seed, double rate = 10) {
  return {.lengths = ShareGptLike(), .requests_per_second = rate, .duration_s = 3600, .seed = seed};
}

TEST(PoissonTraceTest, TheSameSeedGivesTheSameTraceAndAnotherSeedAnother) {
  EXPECT_EQ(PoissonTrace(Options(3)), PoissonTrace(Options(3)));
  EXPECT_NE(PoissonTrace(Options(3)), PoissonTrace(Options(4)));
}

TEST(PoissonTraceTest, GapsHaveMeanAndDeviationOfThePoissonProcess) {
  const Trace trace = PoissonTrace(Options(5));
  const auto n = static_cast<double>(trace.requests.size());

  double sum = 0;
  double squares = 0;
  Instant before = 0;
  for (const SimRequest& request : trace.requests) {
    const double gap_s = static_cast<double>(request.arrival - before) / 1e9;
    ASSERT_GE(gap_s, 0);
    sum += gap_s;
    squares += gap_s * gap_s;
    before = request.arrival;
  }

  EXPECT_NEAR(n, 36'000, 36'000 * 0.02);  // 4 deviations are 759
  EXPECT_NEAR(sum / n, 0.1, 0.002);
  EXPECT_NEAR(squares / n, 2 * 0.1 * 0.1, 0.001);
  EXPECT_LT(trace.requests.back().arrival, 3600 * kNanosPerSecond);
}

TEST(PoissonTraceTest, AHigherRateBringsTheSameRequestsCloserTogether) {
  const Trace slow = PoissonTrace(Options(6, 1));
  const Trace fast = PoissonTrace(Options(6, 4));

  ASSERT_GT(fast.requests.size(), slow.requests.size());
  for (size_t i = 0; i < slow.requests.size(); ++i) {
    EXPECT_EQ(fast.requests[i].prompt_tokens, slow.requests[i].prompt_tokens);
    EXPECT_EQ(fast.requests[i].output_tokens, slow.requests[i].output_tokens);
    EXPECT_NEAR(static_cast<double>(fast.requests[i].arrival),
                static_cast<double>(slow.requests[i].arrival) / 4,
                2);
  }
}

TEST(SharedPrefixTraceTest, PutsThePrefixBeforeEveryPrompt) {
  const Trace plain = PoissonTrace(Options(6, 1));
  const Trace shared = SharedPrefixTrace(Options(6, 1), 80);

  ASSERT_EQ(shared.requests.size(), plain.requests.size());
  EXPECT_EQ(shared.shared_prefix_tokens, 80);
  for (size_t i = 0; i < plain.requests.size(); ++i) {
    EXPECT_EQ(shared.requests[i].prompt_tokens, plain.requests[i].prompt_tokens + 80);
  }
}

TEST(ChatTraceTest, MostPromptsAreCutToTheLast1024Tokens) {
  const Trace trace = ChatTrace(Options(2));

  size_t num_cut = 0;
  for (const SimRequest& request : trace.requests) {
    ASSERT_LE(request.prompt_tokens, 1024);
    ASSERT_LE(request.output_tokens, 1024);
    num_cut += request.prompt_tokens == 1024 ? 1 : 0;
  }

  EXPECT_GT(num_cut, trace.requests.size() / 2);
  EXPECT_LT(num_cut, trace.requests.size());
}

TEST(OfflineTraceTest, RequestsOfTheArtifactAreAllThereAtTheStartWithItsLengths) {
  const Trace trace = OfflineTrace({.lengths = ArxivOfflineLike()}, kArxivOfflineRequests);

  ASSERT_EQ(trace.requests.size(), 427u);
  double prompts = 0;
  double outputs = 0;
  for (const SimRequest& request : trace.requests) {
    EXPECT_EQ(request.arrival, 0);
    EXPECT_GE(request.prompt_tokens, 63'862);
    EXPECT_LE(request.prompt_tokens, 192'786);
    EXPECT_LE(request.prompt_tokens + request.output_tokens, 196'608);
    prompts += request.prompt_tokens;
    outputs += request.output_tokens;
  }
  EXPECT_NEAR(prompts / 427, 87'426, 0.05 * 87'426);
  EXPECT_NEAR(outputs / 427, 428, 0.15 * 428);
}

TEST(LengthModelTest, TheTracesOfPapersHaveTheirMeans) {
  const LengthModel offline(ArxivOfflineLike());
  const LengthModel online(ArxivOnlineLike());

  EXPECT_NEAR(offline.mean_prompt(), 87'426, 1);
  EXPECT_NEAR(offline.mean_output(), 428, 0.1);
  EXPECT_NEAR(online.mean_prompt(), 29'567, 1);
  EXPECT_NEAR(online.mean_output(), 363, 0.1);
}

TEST(ParseTraceTest, ReadsLinesCommentsAndNames) {
  absl::StatusOr<Trace> trace =
      ParseTrace("arrival_s,prompt_tokens,output_tokens\n# two\n0.5,3,4\r\n\n1.25,1024,1\n");

  ASSERT_TRUE(trace.ok()) << trace.status();
  const std::vector<SimRequest> expected = {
      {.arrival = 500'000'000, .prompt_tokens = 3, .output_tokens = 4},
      {.arrival = 1'250'000'000, .prompt_tokens = 1024, .output_tokens = 1}};
  EXPECT_EQ(trace->requests, expected);
}

TEST(ParseTraceTest, RefusesWhatIsNoTraceAndNamesTheLine) {
  for (const char* bad : {"0,1\n",
                          "0,1,2,3\n",
                          "x,1,2\n",
                          "0,1,2\n0,0,2\n",
                          "0,1,2\n0,1,-2\n",
                          "-1,1,2\n",
                          "nan,1,2\n",
                          "inf,1,2\n",
                          "1e300,1,2\n",
                          "0,99999999999,2\n",
                          "0,1,2000000000\n",
                          "2,1,2\n1,1,2\n"}) {
    absl::StatusOr<Trace> trace = ParseTrace(bad);
    ASSERT_FALSE(trace.ok()) << bad;
    EXPECT_EQ(trace.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(trace.status().message().find("line "), std::string::npos) << trace.status();
  }
  EXPECT_FALSE(ParseTrace("").ok());
  EXPECT_FALSE(ParseTrace("# nobody\n").ok());
}

TEST(ReadTraceFileTest, AFileThatIsNotThereIsNotFound) {
  EXPECT_EQ(ReadTraceFile("/no/such/trace").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace quire
