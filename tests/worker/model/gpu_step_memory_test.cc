// The memory of steps on a device that has no more: it is reserved before the KV pool is sized, so
// no step allocates. The emulated device has 1 GiB; a worker that allocates beyond it ends.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "common/base/error.h"
#include "common/json/json.h"
#include "kernels/gpu/gpu_backend.h"
#include "kernels/gpu/gpu_library.h"
#include "tests/support/random.h"
#include "tests/support/with_digest.h"
#include "tests/worker/model/model_dir.h"
#include "tests/worker/model/model_runner.h"
#include "tests/worker/model/random_model.h"
#include "worker/memory_plan.h"
#include "worker/model/model.h"
#include "worker/runtime/step_executor.h"

namespace quire {
namespace {

constexpr int32_t kVocabSize = 128;
constexpr int32_t kSplitTokens = 256;
// A context of four splits that six sequences share: their contexts together have 4,800 tokens, the
// pool has room for 1,024.
constexpr int32_t kContext = 800;
constexpr int32_t kNumSharers = 6;
constexpr int64_t kNumBlocks = 64;
constexpr StepBounds kBounds = {.max_tokens = 200,
                                .max_seqs = 8,
                                .max_context_tokens = 1024,
                                .max_blocks_per_seq = 1024 / ModelRunner::kBlockSizeTokens};

Json Config() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"vocab_size", kVocabSize},
          {"hidden_size", 128},
          {"intermediate_size", 192},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 64},
          {"rms_norm_eps", 1e-5},
          {"max_position_embeddings", 1024},
          {"torch_dtype", "bfloat16"}};
}

int num_recordings = 0;
decltype(gpu::GpuApi::begin_graph) real_begin_graph = nullptr;

int CountedBeginGraph(gpu::Stream stream) {
  ++num_recordings;
  return real_begin_graph(stream);
}

int num_sample_calls = 0;
decltype(gpu::GpuApi::sample) real_sample = nullptr;

int CountedSample(const SampleParams& params, const gpu::SampleRowsView& rows, gpu::Stream stream) {
  ++num_sample_calls;
  return real_sample(params, rows, stream);
}

int num_decode_calls = 0;
decltype(gpu::GpuApi::decode) real_decode = nullptr;

int CountedDecode(const PagedAttentionParams& params,
                  const gpu::DecodePlan& plan,
                  DType activations,
                  gpu::Stream stream) {
  ++num_decode_calls;
  return real_decode(params, plan, activations, stream);
}

std::unique_ptr<KernelBackend> MakeBackend(const GpuBackendOptions& options = {}) {
  auto library = GpuLibrary::Open("emu", 0);
  EXPECT_TRUE(library.ok()) << library.status();
  static gpu::GpuApi counted;
  counted = library->api();
  real_decode = counted.decode;
  counted.decode = &CountedDecode;
  real_sample = counted.sample;
  counted.sample = &CountedSample;
  real_begin_graph = counted.begin_graph;
  counted.begin_graph = &CountedBeginGraph;
  auto backend = CreateGpuBackend(GpuLibrary(counted, library->device()), options);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return std::move(*backend);
}

std::vector<TokenId> RandomTokens(int32_t count, uint64_t seed) {
  Random random(seed);
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < count; ++i) {
    tokens.push_back(random.Below(kVocabSize));
  }
  return tokens;
}

class GpuStepMemoryTest : public testing::Test {
 protected:
  void SetUp() override { WriteRandomModel(Config(), /*seed=*/1, &dir_); }

  void Load(const GpuBackendOptions& options) {
    runner_.reset();
    model_.reset();
    backend_ = MakeBackend(options);
    auto model = LoadModel(dir_.path(), *backend_, nullptr);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = std::move(*model);
  }

  int64_t FreeBytes() const { return backend_->space()->free_bytes; }

  // One more token for each of kNumSharers sequences whose contexts are all that of sequence 0. The
  // tokens are not written.
  Batch DecodesOfOnePrefix() const {
    const std::vector<BlockId>& blocks = runner_->BlocksOf(0);
    Batch batch;
    batch.query_start.push_back(0);
    batch.max_blocks_per_seq = static_cast<int32_t>(blocks.size());
    for (int32_t seq = 0; seq < kNumSharers; ++seq) {
      batch.token_ids.push_back(seq);
      batch.positions.push_back(kContext - 1);
      batch.slot_mapping.push_back(-1);
      batch.query_start.push_back(seq + 1);
      batch.seq_lens.push_back(kContext);
      batch.logits_rows.push_back(seq);
      batch.block_tables.insert(batch.block_tables.end(), blocks.begin(), blocks.end());
    }
    return batch;
  }

  std::vector<float> LogitsOf(const Batch& batch) {
    return ReadBack(*backend_,
                    model_->Forward(batch, runner_->cache()),
                    int64_t{batch.num_seqs()} * kVocabSize);
  }

  struct Sampled {
    std::vector<TokenId> tokens = std::vector<TokenId>(kNumSharers);
    std::vector<float> logprobs = std::vector<float>(kNumSharers);
    std::unique_ptr<bool[]> finite = std::make_unique<bool[]>(kNumSharers);

    friend bool operator==(const Sampled& a, const Sampled& b) {
      return a.tokens == b.tokens && a.logprobs == b.logprobs &&
             std::equal(a.finite.get(), a.finite.get() + kNumSharers, b.finite.get());
    }
  };

  // Runs a step and samples its rows.
  Sampled Sample(const std::vector<SamplingRow>& rows, bool is_announced) {
    if (is_announced) {
      backend_->AnnounceSampling(rows);
    }
    float* logits = model_->Forward(DecodesOfOnePrefix(), runner_->cache());
    Sampled sampled;
    backend_->Sample({.num_rows = kNumSharers,
                      .vocab_size = kVocabSize,
                      .row_stride = kVocabSize,
                      .logits = logits,
                      .rows = rows.data(),
                      .token_ids = sampled.tokens.data(),
                      .logprobs = sampled.logprobs.data(),
                      .finite = sampled.finite.get()});
    return sampled;
  }

  // Computes a long prompt in pieces, so that sequence 0 has kContext tokens.
  void FeedPrefix() {
    ASSERT_EQ(runner_->AddSequence(), 0);
    runner_->Feed(0, RandomTokens(kContext, 2), kBounds.max_tokens);
  }

  ModelDir dir_;
  std::unique_ptr<KernelBackend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<ModelRunner> runner_;
};

TEST_F(GpuStepMemoryTest, StepsWithinTheBoundsRunOnADeviceWithoutFreeMemory) {
  for (const auto quantization : {GpuQuantization::kNone, GpuQuantization::kFp8}) {
    Load({.quantization = quantization});
    ASSERT_TRUE(model_->Reserve(kBounds).ok());
    runner_ = std::make_unique<ModelRunner>(*model_, *backend_, kNumBlocks);
    auto rest = backend_->Allocate(FreeBytes());
    ASSERT_TRUE(rest.ok()) << rest.status();
    ASSERT_EQ(FreeBytes(), 0);

    FeedPrefix();
    // There is no memory for a graph either, so each step runs its operations.
    const std::vector<float> logits = LogitsOf(DecodesOfOnePrefix());
    num_recordings = 0;
    for (int step = 0; step < 3; ++step) {
      EXPECT_EQ(LogitsOf(DecodesOfOnePrefix()), logits);
    }
    EXPECT_EQ(num_recordings, 1) << "a device without memory is not asked again";
    const int decoding = runner_->AddSequence();
    runner_->Feed(decoding, RandomTokens(5, 3), 5);
    runner_->Run({{.sequence = decoding, .tokens = {1}},
                  {.sequence = runner_->AddSequence(), .tokens = RandomTokens(150, 4)}});
    const std::vector<BlockId> src = {1, 2};
    const std::vector<BlockId> dst = {3, 4};
    backend_->CopyBlocks({.cache = runner_->cache(), .src = src, .dst = dst});

    EXPECT_EQ(FreeBytes(), 0);
    backend_->WaitForOperations();
  }
}

TEST_F(GpuStepMemoryTest, ContextsLargerThanThePoolDecodeInGroupsWithTheSameBits) {
  std::vector<float> together;
  for (const int64_t max_partial_bytes : {int64_t{1} << 20, int64_t{1}}) {
    Load({.max_partial_bytes = max_partial_bytes});
    ASSERT_TRUE(model_->Reserve(kBounds).ok());
    runner_ = std::make_unique<ModelRunner>(*model_, *backend_, kNumBlocks);
    FeedPrefix();
    static_assert(kContext > 3 * kSplitTokens, "as many splits as the bounds allow");
    num_decode_calls = 0;

    std::vector<float> logits = LogitsOf(DecodesOfOnePrefix());

    if (max_partial_bytes > 1) {
      EXPECT_EQ(num_decode_calls, 2) << "one for each layer";
      together = logits;
      continue;
    }
    // There is memory for the partial results of one sequence. Two sequences are padding and join
    // the last.
    EXPECT_EQ(num_decode_calls, 2 * kNumSharers);
    EXPECT_EQ(logits, together);
    for (int step = 0; step < 2; ++step) {
      EXPECT_EQ(LogitsOf(DecodesOfOnePrefix()), together) << "never from a graph";
    }
    EXPECT_EQ(num_decode_calls, 3 * 2 * kNumSharers);
  }
}

TEST_F(GpuStepMemoryTest, AnnouncedRowsAreSampledInTheGraphWithTheSameResults) {
  Load({});
  ASSERT_TRUE(model_->Reserve(kBounds).ok());
  runner_ = std::make_unique<ModelRunner>(*model_, *backend_, kNumBlocks);
  FeedPrefix();
  std::vector<SamplingParams> params(2 * kNumSharers);
  std::vector<SamplingRow> rows;
  std::vector<SamplingRow> other_rows;
  for (size_t i = 0; i < params.size(); ++i) {
    params[i].seed = i;
    params[i].top_p = i % 2 == 0 ? 1.0F : 0.9F;
    params[i].num_logprobs = i % 3 == 0 ? 0 : -1;
    (i < kNumSharers ? rows : other_rows).push_back({.params = &params[i]});
  }
  const Sampled expected = Sample(rows, /*is_announced=*/false);
  const Sampled expected_of_others = Sample(other_rows, /*is_announced=*/false);
  EXPECT_FALSE(expected == expected_of_others);

  for (int step = 0; step < 3; ++step) {
    // The parameters are inputs of the graph. The first step is eager, the second recorded.
    num_sample_calls = 0;
    EXPECT_TRUE(Sample(rows, /*is_announced=*/true) == expected) << step;
    EXPECT_TRUE(Sample(other_rows, /*is_announced=*/true) == expected_of_others) << step;
    EXPECT_EQ(num_sample_calls, step == 0 ? 2 : 0) << step;
    EXPECT_TRUE(Sample(rows, /*is_announced=*/false) == expected) << step;
  }
  // Other rows than those announced are sampled, not those in the graph.
  backend_->AnnounceSampling(other_rows);
  EXPECT_TRUE(Sample(rows, /*is_announced=*/false) == expected);
  // Rows with penalties, or with likeliest tokens, are sampled after the graph.
  for (SamplingParams& each : params) {
    each.logit_bias = {{7, 100.0F}};
  }
  num_sample_calls = 0;
  EXPECT_EQ(Sample(rows, /*is_announced=*/true).tokens, std::vector<TokenId>(kNumSharers, 7));
  EXPECT_EQ(num_sample_calls, 1);
}

TEST_F(GpuStepMemoryTest, AStepBegunAheadReplaysItsGraphWithTheSameLogits) {
  Load({});
  ASSERT_TRUE(model_->Reserve(kBounds).ok());
  runner_ = std::make_unique<ModelRunner>(*model_, *backend_, kNumBlocks);
  FeedPrefix();
  const Batch batch = DecodesOfOnePrefix();
  Batch wrong = batch;
  std::fill(wrong.token_ids.begin(), wrong.token_ids.end(), 99);
  const std::vector<float> expected = LogitsOf(batch);
  ASSERT_NE(LogitsOf(wrong), expected);
  const auto run = [&] {
    float* logits = model_->Run(batch, runner_->cache());
    return ReadBack(*backend_, logits, int64_t{kNumSharers} * kVocabSize);
  };
  num_decode_calls = 0;
  num_recordings = 0;

  model_->Begin(batch, runner_->cache());
  EXPECT_EQ(run(), expected);
  model_->Begin(wrong, runner_->cache());
  model_->Begin(batch, runner_->cache());
  EXPECT_EQ(run(), expected) << "the last Begin counts";
  EXPECT_EQ(num_decode_calls, 0);
  EXPECT_EQ(num_recordings, 0);

  // Memory that is allocated between the two calls ends all graphs.
  model_->Begin(batch, runner_->cache());
  ASSERT_TRUE(backend_->Allocate(1 << 10).ok());
  EXPECT_EQ(run(), expected);
  EXPECT_GT(num_decode_calls, 0) << "the step ran its operations";
}

class CountPrepared : public StepObserver {
 public:
  void OnEpoch(const EpochObservation& /*epoch*/) override {}
  void OnStep(const ExecutedStep& step) override { num_prepared += step.was_prepared ? 1 : 0; }

  int num_prepared = 0;
};

TEST_F(GpuStepMemoryTest, StepsThatWerePreparedAreGraphsWithTheSampling) {
  constexpr int kNumSteps = 8;
  Load({});
  CountPrepared observer;
  StepExecutor executor(*model_, *backend_, {.bytes = 16 << 20}, nullptr, nullptr, &observer);
  ASSERT_TRUE(executor
                  .BeginEpoch({.scheduler_incarnation = 1,
                               .group_epoch = 1,
                               .limits = {.num_blocks = 16,
                                          .block_size_tokens = 16,
                                          .max_sequences = 4,
                                          .max_tokens_per_step = 64,
                                          .max_model_len = 256,
                                          .wants_next_blocks = true},
                               .kv_cache_dtype = DType::kBF16})
                  .ok());
  for (uint64_t step = 1; step <= kNumSteps; ++step) {
    StepPlan plan{.header = {.scheduler_incarnation = 1, .group_epoch = 1, .step_id = step}};
    for (const int32_t id : {0, 1, 2}) {
      const auto handle = static_cast<SequenceHandle>(id);
      if (step == 1) {
        plan.introductions.push_back({.handle = handle,
                                      .token_ids = {1, 2, id + 3},
                                      .num_prompt_tokens = 3,
                                      .sampling = {.temperature = 0.7F}});
      }
      plan.slices.push_back({.handle = handle, .num_tokens = step == 1 ? 3 : 1});
      if (step == 1) {
        plan.slices.back().new_block_ids = {id + 1};
      }
    }
    if (step == 4) {  // the first decodes run operation by operation, then are recorded
      num_decode_calls = 0;
      num_sample_calls = 0;
    }
    ASSERT_TRUE(executor.Execute(WithDigest(plan)).ok());
    executor.WhenAnswered();
  }
  EXPECT_EQ(observer.num_prepared, kNumSteps - 1);
  EXPECT_EQ(num_decode_calls, 0);
  EXPECT_EQ(num_sample_calls, 0);
}

// 600 rows with 4,096 distinct tokens of context have 39 MB of adjustments; the sampler has 16 MiB.
TEST_F(GpuStepMemoryTest, RowsWithManyPenaltiesAreSampledInPasses) {
  constexpr int32_t kLargeVocab = 4096;
  constexpr int32_t kNumRows = 600;
  Load({});
  ASSERT_TRUE(model_->Reserve(kBounds).ok());
  std::vector<TokenId> context;
  for (int32_t token = 0; token < kLargeVocab; ++token) {
    context.push_back(token);
  }
  Random random(5);
  std::vector<float> numbers(size_t{kLargeVocab} * kNumRows);
  for (float& number : numbers) {
    number = static_cast<float>(random.Below(1 << 20)) * 0x1p-17F;
  }
  SamplingParams penalty;
  penalty.repetition_penalty = 1.5F;
  penalty.num_logprobs = 2;
  std::vector<SamplingParams> params(kNumRows, penalty);
  std::vector<SamplingRow> rows;
  for (size_t row = 0; row < params.size(); ++row) {
    params[row].seed = row;
    rows.push_back({.params = &params[row], .prompt_token_ids = context});
  }
  struct SampledRows {
    std::vector<TokenId> tokens = std::vector<TokenId>(kNumRows);
    std::vector<float> logprobs = std::vector<float>(kNumRows);
    std::unique_ptr<bool[]> finite = std::make_unique<bool[]>(kNumRows);
    std::vector<SampledLogprob> top = std::vector<SampledLogprob>(size_t{kNumRows} * 2);
  };
  auto logits = backend_->Allocate(static_cast<int64_t>(numbers.size() * sizeof(float)));
  ASSERT_TRUE(logits.ok());
  const auto sample = [&](int32_t rows_per_call) {
    SampledRows sampled;
    backend_->Upload((*logits)->data(), numbers.data(), (*logits)->size_bytes());
    for (int32_t first = 0; first < kNumRows; first += rows_per_call) {
      backend_->Sample(
          {.num_rows = std::min(rows_per_call, kNumRows - first),
           .vocab_size = kLargeVocab,
           .row_stride = kLargeVocab,
           .logits = static_cast<float*>((*logits)->data()) + int64_t{first} * kLargeVocab,
           .rows = rows.data() + first,
           .token_ids = sampled.tokens.data() + first,
           .logprobs = sampled.logprobs.data() + first,
           .finite = sampled.finite.get() + first,
           .top_logprobs = sampled.top.data() + int64_t{first} * 2,
           .top_logprobs_stride = 2});
    }
    return sampled;
  };
  const int64_t free_before = FreeBytes();

  const SampledRows together = sample(kNumRows);

  EXPECT_EQ(FreeBytes(), free_before);
  const SampledRows apart = sample(50);
  EXPECT_EQ(together.tokens, apart.tokens);
  EXPECT_EQ(together.logprobs, apart.logprobs);
  EXPECT_TRUE(std::all_of(together.finite.get(),
                          together.finite.get() + kNumRows,
                          [](bool is_finite) { return is_finite; }));
  for (size_t i = 0; i < together.top.size(); ++i) {
    ASSERT_EQ(together.top[i].token_id, apart.top[i].token_id) << i;
  }
}

// 5,000 copies take two passes.
TEST_F(GpuStepMemoryTest, CopiesOfManyBlocksAreMadeInPasses) {
  constexpr int32_t kNumCopies = 5000;
  Load({});
  const KvCacheLayout layout = backend_->LayoutFor({.num_layers = 1,
                                                    .num_kv_heads = 1,
                                                    .head_dim = 64,
                                                    .block_size_tokens = 8,
                                                    .dtype = DType::kBF16});
  const int64_t floats = layout.block_bytes() / int64_t{sizeof(float)};
  auto pool = backend_->Allocate(2 * kNumCopies * layout.block_bytes());
  ASSERT_TRUE(pool.ok());
  std::vector<float> numbers(static_cast<size_t>(2 * kNumCopies * floats));
  std::vector<BlockId> src;
  std::vector<BlockId> dst;
  for (BlockId block = 0; block < kNumCopies; ++block) {
    std::fill_n(numbers.begin() + block * floats, floats, static_cast<float>(block));
    src.push_back(block);
    dst.push_back(2 * kNumCopies - 1 - block);
  }
  backend_->Upload((*pool)->data(), numbers.data(), (*pool)->size_bytes());

  backend_->CopyBlocks(
      {.cache = {.base = (*pool)->data(), .num_blocks = 2 * kNumCopies, .layout = layout},
       .src = src,
       .dst = dst});

  const std::vector<float> read = ReadBack(*backend_, (*pool)->data(), 2 * kNumCopies * floats);
  for (BlockId block = 0; block < kNumCopies; ++block) {
    ASSERT_EQ(read[static_cast<size_t>(dst[static_cast<size_t>(block)] * floats)], block);
  }
}

// The limits are those of a scheduler's defaults. Nothing of the memory that their steps need may
// be missing when the pool takes the rest.
TEST_F(GpuStepMemoryTest, TheKvPoolIsSizedBesideTheMemoryOfUsualSteps) {
  Load({.quantization = GpuQuantization::kFp8});
  WorkerConfig config;
  config.gpu.memory_utilization = 0.97;
  const int64_t free_before = FreeBytes();

  const auto budget = SizeKvCache(config, config.kv_cache, *backend_, *model_);

  ASSERT_TRUE(budget.ok()) << budget.status();
  EXPECT_LT(budget->bytes, free_before);
  auto pool = backend_->Allocate(budget->bytes);
  ASSERT_TRUE(pool.ok()) << pool.status();
  const int64_t free_beside_pool = FreeBytes();
  ASSERT_TRUE(model_
                  ->Reserve({.max_tokens = 8192,
                             .max_seqs = 512,
                             .max_context_tokens = 1024,
                             .max_blocks_per_seq = 64})
                  .ok());
  EXPECT_EQ(FreeBytes(), free_beside_pool) << "the plan reserves what these limits need";
}

// Buckets of 1, 2, 4 and 8 sequences are recorded before the first step. Their memory was counted
// when the pool was sized, here to all that the device has.
TEST_F(GpuStepMemoryTest, AllBucketsAreRecordedAtTheStartInMemoryOfThePlan) {
  Load({.max_graph_bytes = int64_t{2} << 20, .records_at_start = true});
  WorkerConfig config;
  config.gpu.memory_utilization = 1.0;
  const auto budget = SizeKvCache(config, config.kv_cache, *backend_, *model_);
  ASSERT_TRUE(budget.ok()) << budget.status();
  runner_ = std::make_unique<ModelRunner>(*model_, *backend_, kNumBlocks);
  FeedPrefix();
  const int64_t pool_bytes = kNumBlocks * runner_->cache().layout.block_bytes();
  auto rest_of_pool = backend_->Allocate(budget->bytes - pool_bytes);
  ASSERT_TRUE(rest_of_pool.ok()) << rest_of_pool.status();
  const int64_t free_before = FreeBytes();
  num_recordings = 0;

  model_->RecordSteps(kBounds.max_seqs, runner_->cache());

  EXPECT_EQ(num_recordings, 4);
  EXPECT_LT(FreeBytes(), free_before) << "graphs take memory";
  EXPECT_GE(FreeBytes(), free_before - backend_->max_record_bytes());
  const SamplingParams greedy = {.temperature = 0.0F};
  const std::vector<SamplingRow> rows(kNumSharers, {.params = &greedy});
  num_decode_calls = 0;
  num_sample_calls = 0;
  const Sampled sampled = Sample(rows, /*is_announced=*/true);
  EXPECT_EQ(num_decode_calls, 0) << "the first step replays a graph with the sampling";
  EXPECT_EQ(num_sample_calls, 0);
  rest_of_pool->reset();
  Load({.use_graphs = false});
  runner_ = std::make_unique<ModelRunner>(*model_, *backend_, kNumBlocks);
  FeedPrefix();
  EXPECT_TRUE(sampled == Sample(rows, /*is_announced=*/false));
}

TEST_F(GpuStepMemoryTest, TheMemoryOfGraphsIsKeptFromThePool) {
  constexpr int64_t kGraphBytes = int64_t{2} << 20;
  const WorkerConfig config;
  std::vector<int64_t> pools;
  for (const bool use_graphs : {false, true}) {
    Load({.use_graphs = use_graphs, .max_graph_bytes = kGraphBytes});
    const auto budget = SizeKvCache(config, config.kv_cache, *backend_, *model_);
    ASSERT_TRUE(budget.ok()) << budget.status();
    pools.push_back(budget->bytes);
  }
  EXPECT_EQ(pools[0] - pools[1], kGraphBytes);
}

TEST_F(GpuStepMemoryTest, LimitsThatDoNotFitAreAnErrorAndNotTheEnd) {
  Load({});
  const absl::Status status =
      model_->Reserve({.max_tokens = 1 << 20, .max_seqs = 64, .max_context_tokens = 1024});
  EXPECT_EQ(ReasonOf(status), "MEMORY") << status;
  // The model still runs within limits that fit.
  ASSERT_TRUE(model_->Reserve(kBounds).ok());
  runner_ = std::make_unique<ModelRunner>(*model_, *backend_, kNumBlocks);
  FeedPrefix();
  LogitsOf(DecodesOfOnePrefix());
}

}  // namespace
}  // namespace quire
