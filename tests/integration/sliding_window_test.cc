// A model with a sliding window (Mistral, window of 24 tokens) in a pool that is far smaller than
// its sequences: blocks that the window has passed serve others, and every bit is that of a run in
// which nothing is ever freed. Greedy tokens are those of Hugging Face transformers.
#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "tests/support/engine.h"
#include "tests/support/random.h"
#include "tests/worker/model/model_runner.h"

namespace quire {
namespace {

constexpr char kModelDir[] = "tests/worker/model/testdata/mistral";
constexpr int32_t kMaxModelLen = 480;

class SlidingWindowEngineTest : public testing::TestWithParam<KvBackend> {
 protected:
  void SetUp() override {
    EngineOptions options = Roomy();
    options.kv_backend = GetParam();
    auto engine = Engine::Create(kModelDir, options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  // An engine that frees no block and has room for all sequences.
  static EngineOptions Roomy() {
    return {.max_sequences = 64, .max_model_len = kMaxModelLen, .frees_behind_window = false};
  }

  // 40 blocks of 4 tokens for all. One sequence takes up to 15 with 32 tokens a step.
  static EngineOptions Tight() {
    return {.num_blocks = 41,
            .block_size_tokens = 4,
            .max_sequences = 64,
            .max_tokens_per_step = 32,
            .max_model_len = kMaxModelLen,
            .num_host_blocks = 60};
  }

  // Long prompts, each twice, and short ones with long answers; greedy and sampled; some with two
  // sequences.
  std::vector<Request> MakeRequests() const {
    Random random(77);
    std::vector<Request> requests;
    for (uint64_t i = 1; i <= 64; ++i) {
      Request request{.id = RequestId(i)};
      const bool is_twin = i % 4 == 2;
      request.prompt_token_ids.resize(
          static_cast<size_t>(random.Between(1, i % 4 == 1 ? 300 : 10)));
      for (TokenId& id : request.prompt_token_ids) {
        id = random.Below(engine_->config().vocab_size);
      }
      if (is_twin) {
        request.prompt_token_ids = requests.back().prompt_token_ids;
      }
      request.max_tokens = random.Between(1, 150);
      request.sampling.temperature = i % 2 == 0 ? 0.0F : 0.9F;
      request.sampling.num_logprobs = 0;
      request.sampling.seed = i;
      request.num_sequences = i % 6 == 1 ? 2 : 1;
      requests.push_back(std::move(request));
    }
    return requests;
  }

  Answers Run(const EngineOptions& options, std::vector<Request> requests) {
    EXPECT_TRUE(engine_->Reset(options).ok());
    for (Request& request : requests) {
      engine_->Add(std::move(request));
    }
    return engine_->RunToEnd();
  }

  std::unique_ptr<Engine> engine_;
};

INSTANTIATE_TEST_SUITE_P(KvBackends,
                         SlidingWindowEngineTest,
                         testing::Values(KvBackend::kPaged, KvBackend::kVmm));

TEST_P(SlidingWindowEngineTest, FreedBlocksChangeNoBit) {
  const Answers oracle = Run(Roomy(), MakeRequests());
  for (const PreemptionMode mode : {PreemptionMode::kRecompute, PreemptionMode::kSwap}) {
    for (const bool prefix_caching : {false, true}) {
      SCOPED_TRACE(testing::Message()
                   << "swap " << (mode == PreemptionMode::kSwap) << " cache " << prefix_caching);
      EngineOptions options = Tight();
      options.core = {.preemption_mode = mode, .prefix_caching = prefix_caching};

      const Answers answers = Run(options, MakeRequests());

      ASSERT_EQ(answers.size(), oracle.size());
      for (const auto& [key, want] : oracle) {
        const Answer& got = answers.at(key);
        ASSERT_EQ(got.token_ids, want.token_ids) << "request " << key.first.value();
        for (size_t i = 0; i < want.logprobs.size(); ++i) {
          ASSERT_EQ(std::bit_cast<uint32_t>(got.logprobs[i]),
                    std::bit_cast<uint32_t>(want.logprobs[i]))
              << "request " << key.first.value() << " token " << i;
        }
      }
      EXPECT_GT(engine_->stats().num_preemptions, 3);
      EXPECT_TRUE(!prefix_caching || engine_->stats().num_prefix_hit_tokens > 100);
      EXPECT_EQ(engine_->stats().num_free_blocks, 40);
    }
  }
}

TEST_P(SlidingWindowEngineTest, TokensAreThoseOfTransformers) {
  std::vector<Request> requests;
  const std::vector<GoldenCase> cases = ReadGolden(std::string(kModelDir) + "/golden.json");
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase& golden : cases) {
    Request request{.id = RequestId(requests.size() + 1), .prompt_token_ids = golden.prompt};
    request.sampling.temperature = 0.0F;
    request.max_tokens = static_cast<int32_t>(golden.steps.size());
    requests.push_back(std::move(request));
  }

  EngineOptions options = Tight();
  options.num_blocks = 16;  // one sequence at its longest
  const Answers answers = Run(options, std::move(requests));

  size_t longest = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    std::vector<TokenId> want;
    for (const GoldenStep& step : cases[i].steps) {
      want.push_back(step.token);
    }
    EXPECT_EQ(answers.at({RequestId(i + 1), 0}).token_ids, want) << cases[i].prompt.size();
    longest = std::max(longest, cases[i].prompt.size());
  }
  EXPECT_GT(longest, 60U) << "longer than the pool";
}

// With freeing, a sequence holds only the blocks of its window between steps; without, it holds all
// of its blocks.
TEST_P(SlidingWindowEngineTest, BetweenStepsASequenceHoldsItsWindow) {
  Request request{.id = RequestId(1)};
  request.prompt_token_ids.assign(300, 5);
  request.max_tokens = 170;
  request.sampling.temperature = 0.0F;
  for (const bool frees : {false, true}) {
    EngineOptions options = Tight();
    options.num_blocks = 130;
    options.frees_behind_window = frees;
    ASSERT_TRUE(engine_->Reset(options).ok());
    engine_->Add(request);
    int32_t num_used_max = 0;
    while (engine_->Step()) {
      num_used_max = std::max(num_used_max, engine_->stats().num_used_blocks);
    }
    // Before the last step 468 tokens are computed; the next one reads 23 of them.
    EXPECT_EQ(num_used_max, frees ? 7 : 117) << "between steps";
  }
}

}  // namespace
}  // namespace quire
