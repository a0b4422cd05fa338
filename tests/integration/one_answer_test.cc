// One request, one answer: the same 64 requests give the same tokens and the same log-probability
// bits in every run. An undisturbed run, each request alone, is the oracle. Every other run changes
// one thing that must not matter and is compared with it bit for bit. The last tests do the same,
// in short, for every family of models that ranks can divide.
#include <bit>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cpu/cpu_backend.h"
#include "tests/support/engine.h"
#include "tests/support/random.h"
#include "tests/worker/model/model_runner.h"
#include "tests/worker/model/random_model.h"

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
    request.num_sequences = i % 16 == 5 ? 3 : i % 16 == 8 ? 2 : 1;
    request.sampling.num_prompt_logprobs = i % 3 == 1 ? 0 : i % 3 == 2 ? 4 : -1;
    requests.push_back(request);
  }
  return requests;
}

EngineOptions Options(int32_t budget) {
  return {.max_tokens_per_step = budget, .max_model_len = kMaxModelLen};
}

std::unique_ptr<Engine> LoadEngine(const std::string& model_dir, const EngineOptions& options) {
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(model_dir, options);
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
    ASSERT_EQ(got.prompt, want.prompt) << "request " << key.first.value();
  }
}

// The oracle reads its blocks by tables, even if the other runs use windows.
class OneAnswerTest : public testing::TestWithParam<KvBackend> {
 protected:
  static void SetUpTestSuite() {
    paged_engine_ = LoadEngine(kModelDir, Options(512)).release();
    oracle_ = new Answers(RunAlone(*paged_engine_));
  }
  static void TearDownTestSuite() {
    delete oracle_;
    delete paged_engine_;
  }

  void SetUp() override {
    if (GetParam() == KvBackend::kPaged) {
      engine_ = paged_engine_;
      return;
    }
    own_engine_ = LoadEngine(1);
    engine_ = own_engine_.get();
  }

  static std::unique_ptr<Engine> LoadEngine(const std::string& model_dir,
                                            EngineOptions options,
                                            KvBackend backend = KvBackend::kPaged) {
    options.kv_backend = backend;
    return quire::LoadEngine(model_dir, options);
  }
  std::unique_ptr<Engine> LoadEngine(int num_threads, const std::string& isa = "") {
    EngineOptions options = Options(512);
    options.num_threads = num_threads;
    options.isa = isa;
    return LoadEngine(kModelDir, options, GetParam());
  }

  static Engine* paged_engine_;
  static Answers* oracle_;
  std::unique_ptr<Engine> own_engine_;
  Engine* engine_ = nullptr;
};

Engine* OneAnswerTest::paged_engine_ = nullptr;
Answers* OneAnswerTest::oracle_ = nullptr;

INSTANTIATE_TEST_SUITE_P(KvBackends,
                         OneAnswerTest,
                         testing::Values(KvBackend::kPaged, KvBackend::kVmm),
                         [](const testing::TestParamInfo<KvBackend>& of) {
                           return of.param == KvBackend::kPaged ? "paged" : "vmm";
                         });

TEST_P(OneAnswerTest, OracleHasEverySequenceWithTokens) {
  int64_t num_tokens = 0;

  for (const auto& [key, answer] : *oracle_) {
    num_tokens += static_cast<int64_t>(answer.token_ids.size());
    EXPECT_EQ(answer.reason, FinishReason::kLength);
  }

  EXPECT_EQ(oracle_->size(), 76U);  // 64 requests, 4 of them with 3 sequences, 4 with 2
  EXPECT_GT(num_tokens, 1000);
}

TEST_P(OneAnswerTest, GreedySequencesOfARequestAreEqual) {
  for (const Request& request : MakeRequests(engine_->config())) {
    if (request.sampling.is_greedy() && request.num_sequences > 1) {
      const Answer& first = oracle_->at({request.id, 0});
      const Answer& second = oracle_->at({request.id, 1});
      EXPECT_EQ(first.token_ids, second.token_ids);
      EXPECT_EQ(first.logprobs, second.logprobs);
    }
  }
}

TEST_P(OneAnswerTest, OracleScoresThePromptsThatAskForIt) {
  for (const Request& request : MakeRequests(engine_->config())) {
    EXPECT_EQ(oracle_->at({request.id, 0}).prompt.num_tokens(), request.num_prompt_logprobs());
  }
}

// A prompt that is another request's prompt and output. Its log-probabilities were compared with
// Hugging Face's when they were those of output (model_golden_test).
TEST_P(OneAnswerTest, AnOutputHasItsLogprobsAsAPromptToo) {
  Request request;
  request.id = RequestId(1);
  request.prompt_token_ids = {11, 12, 13, 14, 15, 16, 17};
  request.max_tokens = 60;
  request.sampling.temperature = 0.9F;
  request.sampling.num_logprobs = 3;
  ASSERT_TRUE(engine_->Reset(Options(512)).ok());
  engine_->Add(request);
  const Answer answer = engine_->RunToEnd().at({request.id, 0});
  const size_t num_prompt = request.prompt_token_ids.size();
  request.prompt_token_ids.insert(
      request.prompt_token_ids.end(), answer.token_ids.begin(), answer.token_ids.end());
  request.sampling.num_prompt_logprobs = 3;
  EngineOptions options = Options(16);
  options.max_sequences = 4;  // fewer rows of logits at a time than a slice has tokens
  ASSERT_TRUE(engine_->Reset(options).ok());

  engine_->Add(request);
  const PromptLogprobs prompt = engine_->RunToEnd().at({request.id, 0}).prompt;

  ASSERT_EQ(prompt.num_tokens(), static_cast<int32_t>(num_prompt + 60 - 1));
  for (size_t i = 0; i < 60; ++i) {
    const size_t at = num_prompt - 1 + i;
    EXPECT_EQ(prompt.logprobs[at], answer.logprobs[i]) << i;
    for (size_t k = 0; k < 3; ++k) {
      EXPECT_EQ(prompt.top[at * 3 + k], answer.top_logprobs[i][k]) << i;
    }
  }
}

TEST_P(OneAnswerTest, BatchOf64AndTokenBudgetDoNotMatter) {
  for (int32_t budget : {16, 64, 512}) {
    SCOPED_TRACE(budget);

    Answers answers = RunTogether(*engine_, Options(budget));

    ExpectSameBits(answers, *oracle_);
  }
}

// Prompts come in pieces that follow how long steps took, which no two runs share, and short ones
// pass long ones.
TEST_P(OneAnswerTest, TheTimeBetweenTokensDoesNotMatter) {
  for (const Instant target : {Instant{1}, kAutoInterToken}) {
    for (int32_t budget : {64, 512}) {
      SCOPED_TRACE(budget);
      EngineOptions options = Options(budget);
      options.core.target_inter_token = target;

      Answers answers = RunTogether(*engine_, options);

      ExpectSameBits(answers, *oracle_);
    }
  }
}

TEST_P(OneAnswerTest, PreemptionByRecomputeDoesNotMatter) {
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

TEST_P(OneAnswerTest, PreemptionBySwapDoesNotMatter) {
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

TEST_P(OneAnswerTest, SwapInsThatFailDoNotMatter) {
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
TEST_P(OneAnswerTest, CachedPrefixesDoNotMatter) {
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

TEST_P(OneAnswerTest, BlockSizeDoesNotMatter) {
  for (int32_t block_size : {8, 32, 128}) {
    SCOPED_TRACE(block_size);
    EngineOptions options = Options(64);
    options.block_size_tokens = block_size;

    Answers answers = RunTogether(*engine_, options);

    ExpectSameBits(answers, *oracle_);
  }
}

TEST_P(OneAnswerTest, NumberOfThreadsDoesNotMatter) {
  for (int threads : {2, 3}) {
    SCOPED_TRACE(threads);
    std::unique_ptr<Engine> engine = LoadEngine(threads);

    Answers answers = RunTogether(*engine, Options(64));

    ExpectSameBits(answers, *oracle_);
  }
}

// Ranks are threads, each with its part of the model and of every block. The runs also preempt in
// both ways, fail swap-ins and share cached prefixes.
TEST_P(OneAnswerTest, NumberOfRanksDoesNotMatter) {
  for (const int32_t num_ranks : {2, 4}) {
    SCOPED_TRACE(num_ranks);
    EngineOptions options = Options(64);
    options.num_ranks = num_ranks;
    const std::unique_ptr<Engine> engine = LoadEngine(kModelDir, options, GetParam());
    EngineOptions small_pool = options;
    small_pool.num_blocks = 220;
    small_pool.block_size_tokens = 4;
    EngineOptions swapping = small_pool;
    swapping.num_host_blocks = 600;
    swapping.stale_swap_in_every = 50;
    swapping.core.preemption_mode = PreemptionMode::kSwap;
    swapping.core.prefix_caching = true;

    ExpectSameBits(RunTogether(*engine, small_pool), *oracle_);
    EXPECT_GT(engine->stats().num_preemptions, 10);
    ExpectSameBits(RunTogether(*engine, swapping), *oracle_);
    EXPECT_GT(engine->stats().num_swap_preemptions, 10);
    EXPECT_GT(engine->stats().num_failed_swap_ins, 0);
  }
}

TEST_P(OneAnswerTest, HoldsOnEveryInstructionSetOfThisMachine) {
  for (const std::string isa : {"avx512bf16", "avx512", "avx2", "portable"}) {
    SCOPED_TRACE(isa);
    if (!CreateCpuBackend({.isa = isa}).ok()) {
      continue;  // this machine lacks it
    }
    EngineOptions whole = Options(512);
    whole.isa = isa;
    std::unique_ptr<Engine> alone = LoadEngine(kModelDir, whole);
    std::unique_ptr<Engine> threads = LoadEngine(2, isa);
    EngineOptions small_pool = Options(64);
    small_pool.num_blocks = 220;
    small_pool.block_size_tokens = 4;
    small_pool.core.target_inter_token = 1;

    Answers oracle = RunTogether(*alone, Options(512), 16);
    Answers answers = RunTogether(*threads, small_pool, 16);

    ExpectSameBits(answers, oracle);
  }
}

// Stored numbers are rounded with a scale that must not depend on what else there is.
TEST_P(OneAnswerTest, HoldsWithCachesOfEightBits) {
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

// Few and short, since there are many families: sampled, forked, beams, shared beginnings.
std::vector<Request> MakeShortRequests(const ModelConfig& config) {
  Random random(3);
  std::vector<TokenId> shared(12);
  for (TokenId& id : shared) {
    id = random.Below(config.vocab_size);
  }
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) {
    Request request;
    request.id = RequestId(static_cast<uint64_t>(i) + 1);
    request.prompt_token_ids = shared;
    for (int32_t more = random.Between(0, 8); more > 0; --more) {
      request.prompt_token_ids.push_back(random.Below(config.vocab_size));
    }
    request.max_tokens = random.Between(6, 12);
    request.sampling.seed = static_cast<uint64_t>(i);
    request.sampling.temperature = i % 2 == 0 ? 0.0F : 1.0F;
    request.sampling.top_k = i % 4 == 1 ? 5 : 0;
    // Without log-probabilities ranks may send a few candidates alone.
    request.sampling.num_logprobs = i % 4 >= 2 ? 2 : -1;
    request.num_sequences = i == 3 ? 3 : 1;
    if (i == 4) {
      request.beam_search = BeamOptions{.num_beams = 3};
      request.sampling.num_logprobs = 6;
    }
    requests.push_back(request);
  }
  return requests;
}

// Compares ranks that have a small pool with one rank that has room for everything.
class RanksOfFamiliesTest : public testing::Test {
 protected:
  static Answers Run(Engine& engine, const EngineOptions& options) {
    EXPECT_TRUE(engine.Reset(options).ok());
    for (Request& request : MakeShortRequests(engine.config())) {
      engine.Add(std::move(request));
    }
    return engine.RunToEnd();
  }

  // Compares the engines for every cache type. Adds up preemptions and tokens from the prefix
  // cache.
  void Compare(const std::string& model_dir,
               const std::string& isa,
               const std::vector<int32_t>& sizes,
               CpuQuantization quantization = CpuQuantization::kNone) {
    EngineOptions whole{
        .isa = isa, .quantization = quantization, .max_sequences = 16, .max_tokens_per_step = 32};
    const std::unique_ptr<Engine> oracle = LoadEngine(model_dir, whole);
    for (const int32_t size : sizes) {
      EngineOptions split = whole;
      split.num_ranks = size;
      split.kv_backend = size <= 2 ? KvBackend::kVmm : KvBackend::kPaged;
      const std::unique_ptr<Engine> engine = LoadEngine(model_dir, split);
      for (const DType dtype :
           {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kInt8}) {
        SCOPED_TRACE(testing::Message()
                     << model_dir << " " << isa << " " << size << " ranks " << NameOf(dtype));
        whole.kv_cache_dtype = split.kv_cache_dtype = dtype;
        split.block_size_tokens = 4;
        split.num_blocks = 30;
        split.num_host_blocks = 60;
        split.core.prefix_caching = true;
        split.core.preemption_mode =
            dtype == DType::kInt8 ? PreemptionMode::kRecompute : PreemptionMode::kSwap;
        ExpectSameBits(Run(*engine, split), Run(*oracle, whole));
        num_preemptions_ += engine->stats().num_preemptions;
        num_hits_ += engine->stats().num_prefix_hit_tokens;
      }
    }
  }

  int64_t num_preemptions_ = 0;
  int64_t num_hits_ = 0;
};

TEST_F(RanksOfFamiliesTest, EveryFamilyThatDividesGivesTheBitsOfOneRank) {
  constexpr char kFamilies[] = "tests/worker/model/testdata";
  int num_families = 0;
  for (const std::string& family : GoldenModels(kFamilies)) {
    const std::string model_dir = std::string(kFamilies) + "/" + family;
    const auto config = LoadModelConfig(model_dir);
    ASSERT_TRUE(config.ok()) << config.status();
    if (!ShareOf(*config, {.rank = 0, .size = 4}).ok()) {
      continue;  // split_model_test says which
    }
    for (const std::string isa : {"amx", "avx512bf16", "avx512", "avx2", "portable"}) {
      if (CreateCpuBackend({.isa = isa}).ok()) {
        Compare(model_dir, isa, {1, 2, 4});
      }
    }
    ++num_families;
  }
  EXPECT_GE(num_families, 18);
  EXPECT_GT(num_preemptions_, 10 * num_families);
  EXPECT_GT(num_hits_, 100 * num_families);
}

TEST_F(RanksOfFamiliesTest, QuantizedWeightsGiveTheBitsOfOneRank) {
  for (const std::string isa : {"amx", "avx512bf16", "avx512", "avx2", "portable"}) {
    if (!CreateCpuBackend({.isa = isa}).ok()) {
      continue;  // this machine lacks it
    }
    Compare("tests/worker/model/gguf_models/llama_k_quants.gguf", isa, {1, 2, 4});
    Compare("tests/worker/model/gguf_models/qwen2_small_blocks.gguf", isa, {1, 2});
    for (const CpuQuantization rounded : {CpuQuantization::kInt8, CpuQuantization::kInt4}) {
      Compare(kModelDir, isa, {1, 2}, rounded);
    }
  }
  EXPECT_GT(num_preemptions_, 10);
  EXPECT_GT(num_hits_, 100);
}

TEST_F(RanksOfFamiliesTest, EightRanksGiveTheBitsOfOne) {
  ModelDir dir;
  WriteRandomModel(EightHeads(), 3, &dir);
  Compare(dir.path(), "", {1, 2, 4, 8});
  EXPECT_GT(num_preemptions_, 10);
  EXPECT_GT(num_hits_, 100);
}

}  // namespace
}  // namespace quire
