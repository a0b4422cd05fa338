// The plans of decode that GpuBackend makes, and what results must not depend on. By default decode
// runs by lines (gpu::DecodeKernel); the emulated library is changed to watch or replace its calls.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/json/json.h"
#include "kernels/gpu/gpu_backend.h"
#include "kernels/gpu/gpu_library.h"
#include "kernels/reference/reference_backend.h"
#include "tests/support/random.h"
#include "tests/worker/model/model_dir.h"
#include "tests/worker/model/model_runner.h"
#include "tests/worker/model/random_model.h"
#include "worker/model/batch.h"
#include "worker/model/model.h"

namespace quire {
namespace {

using testing::AllOf;
using testing::Each;
using testing::Field;
using testing::IsEmpty;
using testing::Not;

constexpr double kTolerance = 2e-2;  // as in gpu_model_test.cc
constexpr int32_t kVocabSize = 128;
constexpr int64_t kNumBlocks = 192;
using Logits = std::vector<std::vector<float>>;
using Slices = std::vector<ModelRunner::Slice>;

Json Config(const Json& more = Json::object()) {
  Json config = {{"architectures", {"LlamaForCausalLM"}},
                 {"vocab_size", kVocabSize},
                 {"hidden_size", 64},
                 {"intermediate_size", 64},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", 2},
                 {"num_key_value_heads", 1},
                 {"head_dim", 64},
                 {"rms_norm_eps", 1e-5},
                 {"max_position_embeddings", 2048},
                 {"torch_dtype", "bfloat16"}};
  config.update(more);
  return config;
}

// ---- The library, watched -----------------------------------------------------------------------

std::vector<gpu::DecodePlan> plans;  // of all calls of Decode
int32_t num_ctas = 0;                // of every grid; 0: the library's
bool has_lines = true;
bool checks_room = false;   // CheckRoom in each call of Decode
int32_t arrivals_left = 0;  // what calls of Decode leave in the first counter, as if cut short
decltype(gpu::GpuApi::decode) real_decode = nullptr;
decltype(gpu::GpuApi::decode_lines_grid_size) real_grid_size = nullptr;
decltype(gpu::GpuApi::synchronize) synchronize = nullptr;

// Checks DecodePlan::partials_per_cta against the plan that the device has made, once it is made.
// One line a sequence, since the model has one KV head. Device memory is host memory.
void CheckRoom(const gpu::DecodePlan& plan) {
  const int32_t total = plan.split_start[plan.num_decodes];
  int32_t longest = 0;
  for (int32_t i = 0; i < plan.num_decodes; ++i) {
    longest = std::max(longest, plan.split_start[i + 1] - plan.split_start[i]);
  }
  const int32_t of_run = (total + plan.num_ctas - 1) / plan.num_ctas;
  if (longest > 1) {
    EXPECT_GE(plan.partials_per_cta, std::min(of_run + 1, longest));
  }
}

int WatchedDecode(const PagedAttentionParams& params,
                  const gpu::DecodePlan& plan,
                  DType activations,
                  gpu::Stream stream) {
  plans.push_back(plan);
  const int error = real_decode(params, plan, activations, stream);
  if (checks_room || arrivals_left > 0) {
    synchronize(stream);
  }
  if (checks_room) {
    CheckRoom(plan);
  }
  if (arrivals_left > 0) {
    plan.arrivals[0] = arrivals_left;
  }
  return error;
}

int WatchedGridSize(const PagedAttentionParams& params,
                    const gpu::DecodePlan& plan,
                    DType activations,
                    int32_t* size) {
  if (!has_lines) {
    return gpu::kUnsupported;
  }
  const int error = real_grid_size(params, plan, activations, size);
  *size = num_ctas > 0 ? num_ctas : *size;
  return error;
}

std::unique_ptr<KernelBackend> MakeBackend(const GpuBackendOptions& options) {
  const auto library = GpuLibrary::Open("emu", 0);
  EXPECT_TRUE(library.ok()) << library.status();
  static gpu::GpuApi watched;
  watched = library->api();
  real_decode = watched.decode;
  watched.decode = &WatchedDecode;
  real_grid_size = watched.decode_lines_grid_size;
  watched.decode_lines_grid_size = &WatchedGridSize;
  synchronize = watched.synchronize;
  auto backend = CreateGpuBackend(GpuLibrary(watched, library->device()), options);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return *std::move(backend);
}

std::vector<TokenId> RandomPrompt(int32_t length, uint64_t seed) {
  Random random(seed);
  std::vector<TokenId> prompt;
  for (int32_t i = 0; i < length; ++i) {
    prompt.push_back(random.Below(kVocabSize));
  }
  return prompt;
}

// A model and sequences of it on one backend.
struct Served {
  Served(const std::string& dir, std::unique_ptr<KernelBackend> on) : backend(std::move(on)) {
    auto loaded = LoadModel(dir, *backend, nullptr);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    model = *std::move(loaded);
    runner = std::make_unique<ModelRunner>(*model, *backend, kNumBlocks);
  }
  Served(const std::string& dir, const GpuBackendOptions& options = {})
      : Served(dir, MakeBackend(options)) {}

  // Adds a sequence for each length, and computes prompts of these lengths.
  void Feed(const std::vector<int32_t>& lengths, int64_t chunk = 200) {
    for (const int32_t length : lengths) {
      const int sequence = runner->AddSequence();
      runner->Feed(sequence, RandomPrompt(length, static_cast<uint64_t>(length)), chunk);
    }
  }
  // Decodes steps of one token of each of these sequences. Returns the logits of all steps.
  Logits Decode(const std::vector<int>& sequences, int num_steps) {
    Logits all;
    for (int step = 0; step < num_steps; ++step) {
      Slices slices;
      for (const int sequence : sequences) {
        slices.push_back({.sequence = sequence, .tokens = {step + 7 * sequence}});
      }
      for (std::vector<float>& row : runner->Run(slices)) {
        all.push_back(std::move(row));
      }
    }
    return all;
  }

  std::unique_ptr<KernelBackend> backend;
  std::unique_ptr<Model> model;
  std::unique_ptr<ModelRunner> runner;
};

class GpuDecodeTest : public testing::Test {
 protected:
  void SetUp() override {
    WriteRandomModel(Config(), /*seed=*/3, &dir_);
    num_ctas = 0;
    has_lines = true;
    checks_room = false;
    arrivals_left = 0;
    plans.clear();
  }

  ModelDir dir_;
};

// ---- The kernel ---------------------------------------------------------------------------------

TEST_F(GpuDecodeTest, RunsByLinesAndWithoutThemBySplits) {
  for (const bool by_lines : {true, false}) {
    has_lines = by_lines;
    Served gpu(dir_.path());
    Served reference(dir_.path(), CreateReferenceBackend());
    gpu.Feed({520});
    reference.Feed({520});
    plans.clear();

    const Logits got = gpu.Decode({0}, 3);

    const Logits expected = reference.Decode({0}, 3);
    for (size_t step = 0; step < expected.size(); ++step) {
      EXPECT_LE(Distance(got[step], expected[step]), kTolerance) << by_lines;
    }
    EXPECT_THAT(plans, Not(IsEmpty()));
    EXPECT_THAT(plans,
                Each(AllOf(Field(&gpu::DecodePlan::kernel,
                                 by_lines ? gpu::DecodeKernel::kLines : gpu::DecodeKernel::kSplits),
                           Field(&gpu::DecodePlan::split_tokens, by_lines ? 256 : 512))));
  }
}

// ---- One answer ---------------------------------------------------------------------------------

// Contexts of one to three splits. Graphs are recorded in the second step, repeated in the others.
TEST_F(GpuDecodeTest, NeitherCompanyNorTheGridNorGraphsNorGroupsChangeABit) {
  constexpr int kNumSteps = 4;
  const std::vector<int32_t> lengths = {520, 5, 300};
  Served alone(dir_.path(), {.use_graphs = false});
  alone.Feed(lengths);
  const Logits expected = alone.Decode({0}, kNumSteps);
  struct Case {
    int32_t grid;
    bool use_graphs;
    int64_t max_partial_bytes;
    size_t num_plans;  // two layers in four steps, or in the two before a graph is repeated
  };
  // In the last case there are two groups, so that no step is repeated.
  for (const auto& [grid, use_graphs, max_partial_bytes, num_plans] : {Case{1, true, 1 << 20, 4},
                                                                       Case{2, false, 1 << 20, 8},
                                                                       Case{5, true, 1 << 20, 4},
                                                                       Case{40, true, 1, 16}}) {
    num_ctas = grid;
    Served served(dir_.path(), {.use_graphs = use_graphs, .max_partial_bytes = max_partial_bytes});
    served.Feed(lengths);
    plans.clear();
    checks_room = num_plans > 4;  // a recording cannot be waited for

    const Logits logits = served.Decode({0, 1, 2}, kNumSteps);

    for (int step = 0; step < kNumSteps; ++step) {
      EXPECT_EQ(logits[static_cast<size_t>(step) * lengths.size()],
                expected[static_cast<size_t>(step)])
          << grid << " CTAs, graphs " << use_graphs << ", step " << step;
    }
    checks_room = false;
    EXPECT_EQ(plans.size(), num_plans);
    EXPECT_THAT(plans, Each(Field(&gpu::DecodePlan::num_ctas, grid)));
  }
}

// A last chunk of one token follows chunks of 309 or 103 tokens.
TEST_F(GpuDecodeTest, WithBatchInvarianceTheChunksOfAPromptChangeNoBit) {
  const std::vector<TokenId> prompt = RandomPrompt(310, 5);
  Served whole(dir_.path(), {.batch_invariant = true});
  Served pieces(dir_.path(), {.batch_invariant = true});
  ASSERT_EQ(whole.runner->AddSequence(), 0);
  const std::vector<float> expected = whole.runner->Feed(0, prompt, 310);
  plans.clear();
  for (const int32_t chunk : {309, 103, 11}) {
    const int sequence = pieces.runner->AddSequence();

    EXPECT_EQ(pieces.runner->Feed(sequence, prompt, chunk), expected) << chunk;
  }
  EXPECT_THAT(plans, IsEmpty());
}

TEST_F(GpuDecodeTest, WithoutBatchInvarianceShortChunksDecodeByLines) {
  Served gpu(dir_.path());
  Served reference(dir_.path(), CreateReferenceBackend());
  for (Served* served : {&gpu, &reference}) {
    served->Feed({300, 20});
  }
  const Slices slices = {{.sequence = 0, .tokens = RandomPrompt(16, 1)},
                         {.sequence = 1, .tokens = {3}},
                         {.sequence = gpu.runner->AddSequence(), .tokens = RandomPrompt(17, 2)}};
  ASSERT_EQ(reference.runner->AddSequence(), 2);
  plans.clear();

  const Logits got = gpu.runner->Run(slices);

  const Logits expected = reference.runner->Run(slices);
  for (size_t row = 0; row < expected.size(); ++row) {
    EXPECT_LE(Distance(got[row], expected[row]), kTolerance) << row;
  }
  ASSERT_EQ(plans.size(), 4) << "two groups in two layers";
  EXPECT_EQ(plans[0].max_query_tokens, 1);
  EXPECT_EQ(plans[1].max_query_tokens, 16);
}

// ---- Memory -------------------------------------------------------------------------------------

// A kernel that was cut short leaves counters, by which later kernels would fold too early or
// never.
TEST_F(GpuDecodeTest, ArrivalsOfAStepThatWasGivenUpAreForgotten) {
  Served served(dir_.path());
  Served spoiled(dir_.path());
  served.Feed({520});
  spoiled.Feed({520});
  const Logits expected = served.Decode({0}, 1);
  arrivals_left = 1;
  EXPECT_NE(spoiled.Decode({0}, 1), expected) << "the second layer folds too early";
  arrivals_left = 0;

  ASSERT_TRUE(spoiled.backend->JoinGroup(nullptr).ok());

  served.Feed({520});
  spoiled.Feed({520});
  EXPECT_EQ(spoiled.Decode({1}, 1), served.Decode({1}, 1));
}

// ---- Early starts -------------------------------------------------------------------------------

std::vector<bool> EarlyStarts() {
  std::vector<bool> early;
  for (const gpu::DecodePlan& plan : plans) {
    early.push_back(plan.starts_early);
  }
  return early;
}

// Before the wait of an early kernel, the emulator shows it NaN in place of what the operation
// before it writes. In the first layer that is the plan.
TEST_F(GpuDecodeTest, EveryLayerButTheFirstOfItsWindowStartsEarly) {
  WriteRandomModel(
      Config({{"architectures", {"Qwen2ForCausalLM"}},
              {"num_hidden_layers", 4},
              {"use_sliding_window", true},
              {"sliding_window", 24},
              {"layer_types",
               {"full_attention", "full_attention", "sliding_attention", "sliding_attention"}}}),
      /*seed=*/6,
      &dir_);
  Served gpu(dir_.path());
  Served reference(dir_.path(), CreateReferenceBackend());
  gpu.Feed({520});
  reference.Feed({520});
  plans.clear();

  const Logits got = gpu.Decode({0}, 3);

  const Logits expected = reference.Decode({0}, 3);
  for (size_t step = 0; step < expected.size(); ++step) {
    EXPECT_LE(Distance(got[step], expected[step]), kTolerance);
  }
  // Two steps enqueue operations, the third repeats a graph.
  EXPECT_EQ(EarlyStarts(), (std::vector<bool>{false, true, false, true, false, true, false, true}));
}

TEST_F(GpuDecodeTest, ALaterGroupStartsAfterTheGroupBefore) {
  Served served(dir_.path(), {.use_graphs = false, .max_partial_bytes = 1});
  served.Feed({300, 290});
  plans.clear();

  served.Decode({0, 1}, 1);

  EXPECT_EQ(EarlyStarts(), (std::vector<bool>{false, false, true, false}));
}

// Sequence 1 begins with the blocks of sequence 0, whose last one is filled in the same step. Steps
// before have left a graph of two sequences, whose second layer starts early.
TEST_F(GpuDecodeTest, ASequenceReadsTokensThatAnotherOneBringsInTheSameStep) {
  constexpr int32_t kBlock = ModelRunner::kBlockSizeTokens;
  constexpr int32_t kShared = 256;
  Served served(dir_.path());
  ASSERT_TRUE(served.model
                  ->Reserve({.max_tokens = 256,
                             .max_seqs = 2,
                             .max_context_tokens = 2 * kShared,
                             .max_blocks_per_seq = 2 * kShared / kBlock})
                  .ok());
  served.Feed({kShared - 4, 2});
  served.Decode({0, 1}, 3);
  const std::vector<BlockId>& blocks = served.runner->BlocksOf(0);
  const BlockId own = served.runner->BlocksOf(1).front();
  Batch batch = {
      .token_ids = {5, 6},
      .positions = {kShared - 1, kShared},
      .slot_mapping = {int64_t{blocks.back()} * kBlock + kBlock - 1, int64_t{own} * kBlock},
      .query_start = {0, 1, 2},
      .seq_lens = {kShared, kShared + 1},
      .max_blocks_per_seq = kShared / kBlock + 1,
      .logits_rows = {0, 1}};
  for (const BlockId last : {kNullBlockId, own}) {
    batch.block_tables.insert(batch.block_tables.end(), blocks.begin(), blocks.end());
    batch.block_tables.push_back(last);
  }
  const auto logits = [&] {
    return ReadBack(*served.backend,
                    served.model->Forward(batch, served.runner->cache()),
                    int64_t{2} * kVocabSize);
  };
  batch.shares_new_tokens = true;
  plans.clear();
  logits();
  EXPECT_EQ(EarlyStarts(), (std::vector<bool>{false, false}));
  const std::vector<float> expected = logits();  // the token is stored by now

  // Another token and another one again, so that the step must see its own.
  batch.token_ids = {9, 6};
  EXPECT_NE(logits(), expected);
  batch.token_ids = {5, 6};
  EXPECT_EQ(logits(), expected);
}

}  // namespace
}  // namespace quire
