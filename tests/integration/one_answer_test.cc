// One request, one answer: the same 64 requests give the same tokens and the same log-probability
// bits whatever happens around them. Method: an undisturbed run (each request alone) is the oracle;
// every other run changes one thing that must not matter and is compared with it bit for bit.
#include <bit>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cpu/cpu_backend.h"
#include "tests/support/engine.h"
#include "tests/support/random.h"

namespace quire {
namespace {

constexpr char kModelDir[] = "deploy/model";
constexpr int kNumRequests = 64;
constexpr int32_t kMaxModelLen = 512;

// Greedy and sampled, short and long, with penalties and truncation: every path that decides a
// token is taken by some request.
std::vector<Request> MakeRequests(const ModelConfig& config) {
  Random random(20261120);
  std::vector<Request> requests;
  for (int i = 0; i < kNumRequests; ++i) {
    Request request;
    request.id = RequestId(static_cast<uint64_t>(i) + 1);
    request.prompt_token_ids.resize(static_cast<size_t>(random.Between(1, 160)));
    for (TokenId& id : request.prompt_token_ids) {
      id = random.Below(config.vocab_size);
    }
    request.max_tokens = random.Between(1, 128);
    request.sampling.seed = static_cast<uint64_t>(i) * 77 + 5;
    request.sampling.num_logprobs = 0;
    request.sampling.temperature = i % 4 == 0 ? 0.0F : 0.9F;
    request.sampling.top_k = i % 4 == 1 ? 20 : 0;
    request.sampling.top_p = i % 4 == 2 ? 0.9F : 1.0F;
    request.sampling.min_p = i % 8 == 3 ? 0.05F : 0.0F;
    request.sampling.repetition_penalty = i % 8 == 7 ? 1.2F : 1.0F;
    request.num_sequences = i % 16 == 5 ? 3 : 1;
    requests.push_back(request);
  }
  return requests;
}

EngineOptions Options(int32_t budget) {
  return {.max_tokens_per_step = budget, .max_model_len = kMaxModelLen};
}

std::unique_ptr<Engine> LoadEngine(int num_threads, const std::string& isa = "") {
  EngineOptions options = Options(512);
  options.num_threads = num_threads;
  options.isa = isa;
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(kModelDir, options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? *std::move(engine) : nullptr;
}

Answers RunTogether(Engine& engine, const EngineOptions& options, size_t count = kNumRequests) {
  EXPECT_TRUE(engine.Reset(options).ok());
  std::vector<Request> requests = MakeRequests(engine.config());
  for (size_t i = 0; i < count; ++i) {
    engine.Add(std::move(requests[i]));
  }
  return engine.RunToEnd();
}

Answers RunAlone(Engine& engine) {
  Answers all;
  for (Request& request : MakeRequests(engine.config())) {
    EXPECT_TRUE(engine.Reset(Options(512)).ok());
    engine.Add(std::move(request));
    const Answers& one = engine.RunToEnd();
    all.insert(one.begin(), one.end());
  }
  return all;
}

void ExpectSameBits(const Answers& actual, const Answers& oracle) {
  ASSERT_EQ(actual.size(), oracle.size());
  for (const auto& [key, want] : oracle) {
    const Answer& got = actual.at(key);
    ASSERT_EQ(got.token_ids, want.token_ids) << "request " << key.first.value();
    ASSERT_EQ(got.reason, want.reason);
    for (size_t i = 0; i < want.logprobs.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(got.logprobs[i]), std::bit_cast<uint32_t>(want.logprobs[i]))
          << "request " << key.first.value() << " position " << i;
    }
  }
}

class OneAnswerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    engine_ = LoadEngine(1).release();
    oracle_ = new Answers(RunAlone(*engine_));
  }
  static void TearDownTestSuite() {
    delete oracle_;
    delete engine_;
  }

  static Engine* engine_;
  static Answers* oracle_;
};

Engine* OneAnswerTest::engine_ = nullptr;
Answers* OneAnswerTest::oracle_ = nullptr;

TEST_F(OneAnswerTest, OracleHasEverySequenceWithTokens) {
  int64_t num_tokens = 0;

  for (const auto& [key, answer] : *oracle_) {
    num_tokens += static_cast<int64_t>(answer.token_ids.size());
    EXPECT_EQ(answer.reason, FinishReason::kLength);
  }

  EXPECT_EQ(oracle_->size(), 72U);  // 64 requests, 4 of them with 3 sequences
  EXPECT_GT(num_tokens, 1000);
}

TEST_F(OneAnswerTest, BatchOf64AndTokenBudgetDoNotMatter) {
  for (int32_t budget : {16, 64, 512}) {
    SCOPED_TRACE(budget);

    Answers answers = RunTogether(*engine_, Options(budget));

    ExpectSameBits(answers, *oracle_);
  }
}

TEST_F(OneAnswerTest, PreemptionByRecomputeDoesNotMatter) {
  int64_t num_preemptions = 0;
  for (int32_t budget : {16, 64, 512}) {
    SCOPED_TRACE(budget);
    EngineOptions options = Options(budget);
    options.num_blocks = 220;  // 876 tokens: a request of 3 sequences may need 864
    options.block_size_tokens = 4;

    Answers answers = RunTogether(*engine_, options);

    ExpectSameBits(answers, *oracle_);
    num_preemptions += engine_->stats().num_preemptions;
  }
  EXPECT_GE(num_preemptions, 48);
}

TEST_F(OneAnswerTest, PreemptionBySwapDoesNotMatter) {
  int64_t num_swaps = 0;
  for (int32_t budget : {16, 64, 512}) {
    SCOPED_TRACE(budget);
    EngineOptions options = Options(budget);
    options.num_blocks = 220;
    options.block_size_tokens = 4;
    options.num_host_blocks = 600;
    options.core.preemption_mode = PreemptionMode::kSwap;

    Answers answers = RunTogether(*engine_, options);

    ExpectSameBits(answers, *oracle_);
    num_swaps += engine_->stats().num_swap_preemptions;
    EXPECT_EQ(engine_->stats().num_preemptions, engine_->stats().num_swap_preemptions);
    EXPECT_EQ(engine_->stats().num_recomputed_tokens, 0);
  }
  EXPECT_GE(num_swaps, 48);
}

TEST_F(OneAnswerTest, SwapInsThatFailDoNotMatter) {
  EngineOptions options = Options(64);
  options.num_blocks = 220;
  options.block_size_tokens = 4;
  options.num_host_blocks = 600;
  options.stale_swap_in_every = 50;
  options.core.preemption_mode = PreemptionMode::kSwap;
  options.core.prefix_caching = true;

  Answers answers = RunTogether(*engine_, options);

  ExpectSameBits(answers, *oracle_);
  EXPECT_GT(engine_->stats().num_failed_swap_ins, 5);
  EXPECT_GT(engine_->stats().num_recomputed_tokens, 0);
}

// Every request twice, in a pool that keeps some of the first ones' blocks, with preemption of both
// kinds.
TEST_F(OneAnswerTest, CachedPrefixesDoNotMatter) {
  for (const PreemptionMode mode : {PreemptionMode::kRecompute, PreemptionMode::kSwap}) {
    EngineOptions options = Options(64);
    options.num_blocks = 400;
    options.block_size_tokens = 4;
    options.num_host_blocks = 200;
    options.core.preemption_mode = mode;
    options.core.prefix_caching = true;
    ASSERT_TRUE(engine_->Reset(options).ok());
    for (const Request& request : MakeRequests(engine_->config())) {
      for (const uint64_t copy : {0, 1}) {
        Request twin = request;
        twin.id = RequestId(2 * request.id.value() + copy);
        engine_->Add(std::move(twin));
      }
    }

    const Answers all = engine_->RunToEnd();
    Answers first;
    Answers second;
    for (const auto& [key, answer] : all) {
      const uint64_t id = key.first.value();
      (id % 2 == 0 ? first : second)[{RequestId(id / 2), key.second}] = answer;
    }

    ExpectSameBits(first, *oracle_);
    ExpectSameBits(second, *oracle_);
    EXPECT_GT(engine_->stats().num_prefix_hit_tokens, 1000);
    EXPECT_GT(engine_->stats().num_preemptions, 10);
  }
}

TEST_F(OneAnswerTest, BlockSizeDoesNotMatter) {
  for (int32_t block_size : {8, 32, 128}) {
    SCOPED_TRACE(block_size);
    EngineOptions options = Options(64);
    options.block_size_tokens = block_size;

    Answers answers = RunTogether(*engine_, options);

    ExpectSameBits(answers, *oracle_);
  }
}

TEST_F(OneAnswerTest, NumberOfThreadsDoesNotMatter) {
  for (int threads : {2, 3}) {
    SCOPED_TRACE(threads);
    std::unique_ptr<Engine> engine = LoadEngine(threads);

    Answers answers = RunTogether(*engine, Options(64));

    ExpectSameBits(answers, *oracle_);
  }
}

TEST_F(OneAnswerTest, HoldsOnEveryInstructionSetOfThisMachine) {
  for (const std::string isa : {"avx512", "avx2", "portable"}) {
    SCOPED_TRACE(isa);
    if (!CreateCpuBackend({.isa = isa}).ok()) {
      continue;  // this machine lacks it
    }
    std::unique_ptr<Engine> alone = LoadEngine(1, isa);
    std::unique_ptr<Engine> threads = LoadEngine(2, isa);
    EngineOptions small_pool = Options(64);
    small_pool.num_blocks = 220;
    small_pool.block_size_tokens = 4;

    Answers oracle = RunTogether(*alone, Options(512), 16);
    Answers answers = RunTogether(*threads, small_pool, 16);

    ExpectSameBits(answers, oracle);
  }
}

// Stored numbers are rounded with a scale that must not depend on what else there is.
TEST_F(OneAnswerTest, HoldsWithCachesOfEightBits) {
  constexpr size_t kCount = 16;
  std::unique_ptr<Engine> threads = LoadEngine(2);
  for (DType dtype : {DType::kF8E4M3, DType::kInt8}) {
    SCOPED_TRACE(NameOf(dtype));
    EngineOptions options = Options(512);
    options.kv_cache_dtype = dtype;
    Answers oracle;
    std::vector<Request> requests = MakeRequests(engine_->config());
    for (size_t i = 0; i < kCount; ++i) {
      ASSERT_TRUE(engine_->Reset(options).ok());
      engine_->Add(std::move(requests[i]));
      const Answers& one = engine_->RunToEnd();
      oracle.insert(one.begin(), one.end());
    }

    for (int32_t block_size : {4, 16, 32}) {
      EngineOptions changed = Options(16 * block_size);
      changed.kv_cache_dtype = dtype;
      changed.block_size_tokens = block_size;
      changed.num_blocks = block_size == 4 ? 220 : 0;  // 220: some are preempted
      ExpectSameBits(RunTogether(*threads, changed, kCount), oracle);
    }
    const std::pair<RequestId, int32_t> sampled{RequestId(2), 0};
    EXPECT_NE(oracle.at(sampled).logprobs, oracle_->at(sampled).logprobs) << "not used at all";
  }
}

}  // namespace
}  // namespace quire
