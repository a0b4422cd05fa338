// Runs whole models on the GPU backend. By default it is the emulated library, the same kernels on
// the CPU; QUIRE_TEST_DEVICE=cuda takes a GPU. The expected logits are those of the reference
// backend in fp32, from the same weights.
//
// Tolerance: activations are bf16, 8 bits of fraction. Some twenty roundings of relative size 2^-9
// lie between a token and its logits in two layers; together they come to about 1e-2 of the logits.
// With FP8, weights and activations of layers are e4m3, 4 bits of fraction: measured 1.3e-2 to
// 4.5e-2.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "common/json/json.h"
#include "kernels/cuda/device/element.h"
#include "kernels/gpu/gpu_backend.h"
#include "kernels/gpu/gpu_library.h"
#include "kernels/reference/reference_backend.h"
#include "tests/support/random.h"
#include "tests/worker/model/model_dir.h"
#include "tests/worker/model/model_runner.h"
#include "tests/worker/model/random_model.h"
#include "worker/model/model.h"

namespace quire {
namespace {

constexpr double kTolerance = 2e-2;
constexpr double kFp8Tolerance = 6e-2;
constexpr GpuQuantization kQuantizations[] = {GpuQuantization::kNone, GpuQuantization::kFp8};
const GpuBackendOptions kFp8 = {.quantization = GpuQuantization::kFp8};
constexpr int64_t kNumBlocks = 64;
constexpr int32_t kVocabSize = 128;

std::string DeviceName() {
  const char* name = std::getenv("QUIRE_TEST_DEVICE");
  return name == nullptr ? "emu" : name;
}

std::unique_ptr<KernelBackend> MakeGpuBackend(const GpuBackendOptions& options = {}) {
  auto library = GpuLibrary::Open(DeviceName(), 0);
  EXPECT_TRUE(library.ok()) << library.status();
  auto backend = CreateGpuBackend(*library, options);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return std::move(*backend);
}

Json DecoderConfig(const std::string& architecture, const Json& more = Json::object()) {
  Json config = {{"architectures", {architecture}},
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
  config.update(more);
  return config;
}

Json OptConfig(const Json& more = Json::object()) {
  Json config = {{"architectures", {"OPTForCausalLM"}},
                 {"vocab_size", kVocabSize},
                 {"hidden_size", 256},
                 {"word_embed_proj_dim", 256},
                 {"ffn_dim", 192},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", 4},
                 {"do_layer_norm_before", true},
                 {"max_position_embeddings", 1024},
                 {"torch_dtype", "bfloat16"}};
  config.update(more);
  return config;
}

Json BloomConfig(int32_t num_heads) {
  return {{"architectures", {"BloomForCausalLM"}},
          {"vocab_size", kVocabSize},
          {"hidden_size", num_heads * 64},
          {"n_layer", 2},
          {"n_head", num_heads},
          {"torch_dtype", "bfloat16"}};
}

struct Family {
  std::string name;
  Json config;
};

std::vector<Family> Families() {
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 64}};
  return {
      {"llama", DecoderConfig("LlamaForCausalLM")},
      {"llama_tied", DecoderConfig("LlamaForCausalLM", {{"tie_word_embeddings", true}})},
      {"llama3_rope", DecoderConfig("LlamaForCausalLM", {{"rope_scaling", llama3}})},
      {"llama_of_group_1", DecoderConfig("LlamaForCausalLM", {{"num_key_value_heads", 4}})},
      {"llama_head_dim_96", DecoderConfig("LlamaForCausalLM", {{"head_dim", 96}})},
      {"mistral_window", DecoderConfig("MistralForCausalLM", {{"sliding_window", 24}})},
      {"qwen2", DecoderConfig("Qwen2ForCausalLM")},
      {"qwen2_window_in_one_layer",
       DecoderConfig("Qwen2ForCausalLM",
                     {{"use_sliding_window", true},
                      {"sliding_window", 24},
                      {"layer_types", {"sliding_attention", "full_attention"}}})},
      {"qwen3", DecoderConfig("Qwen3ForCausalLM")},
      {"opt", OptConfig()},
      {"opt_post_norm", OptConfig({{"do_layer_norm_before", false}, {"word_embed_proj_dim", 128}})},
      {"bloom", BloomConfig(/*num_heads=*/4)},
      {"bloom_of_3_heads", BloomConfig(/*num_heads=*/3)},
  };
}

// A model on one backend, with sequences on it.
class Served {
 public:
  Served(const std::string& model_dir,
         std::unique_ptr<KernelBackend> backend,
         std::optional<DType> cache_dtype = std::nullopt,
         int64_t num_blocks = kNumBlocks)
      : backend_(std::move(backend)) {
    auto model = LoadModel(model_dir, *backend_, nullptr);
    EXPECT_TRUE(model.ok()) << model.status();
    model_ = std::move(*model);
    runner_ = std::make_unique<ModelRunner>(*model_, *backend_, num_blocks, cache_dtype);
  }

  ModelRunner* operator->() { return runner_.get(); }
  Model& model() { return *model_; }

 private:
  std::unique_ptr<KernelBackend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<ModelRunner> runner_;
};

std::vector<TokenId> RandomPrompt(int32_t length, uint64_t seed) {
  Random random(seed);
  std::vector<TokenId> prompt;
  for (int32_t i = 0; i < length; ++i) {
    prompt.push_back(random.Below(kVocabSize));
  }
  return prompt;
}

void ExpectClose(const std::vector<float>& got,
                 const std::vector<float>& expected,
                 double tolerance) {
  const double distance = Distance(got, expected);
  ASSERT_TRUE(std::isfinite(distance));
  EXPECT_LE(distance, tolerance);
}

class GpuModelTest : public testing::TestWithParam<Family> {
 protected:
  void SetUp() override { WriteRandomModel(GetParam().config, /*seed=*/1, &dir_); }

  // Feeds a prompt in chunks, then decodes.
  void ExpectNearReference(const GpuBackendOptions& options, double tolerance) {
    Served gpu(dir_.path(), MakeGpuBackend(options));
    Served reference(dir_.path(), CreateReferenceBackend());
    const std::vector<TokenId> prompt = RandomPrompt(/*length=*/41, /*seed=*/2);

    const int sequence = gpu->AddSequence();
    ASSERT_EQ(reference->AddSequence(), sequence);
    std::vector<float> got = gpu->Feed(sequence, prompt, /*chunk=*/17);
    std::vector<float> expected = reference->Feed(sequence, prompt, /*chunk=*/17);

    ExpectClose(got, expected, tolerance);
    for (int step = 0; step < 4; ++step) {
      // Both models continue with the reference's token, so that a near tie does not separate them.
      const ModelRunner::Slice next = {.sequence = sequence, .tokens = {Greedy(expected)}};
      got = gpu->Run({next}).front();
      expected = reference->Run({next}).front();
      ExpectClose(got, expected, tolerance);
    }
  }

  ModelDir dir_;
};

TEST_P(GpuModelTest, PrefillInChunksAndDecodeAgreeWithTheReference) {
  ExpectNearReference({}, kTolerance);
}

// The second batch finds graphs and addresses that the first one left.
TEST_P(GpuModelTest, EveryRowOfAPromptAgreesWithTheReference) {
  Served gpu(dir_.path(), MakeGpuBackend());
  Served reference(dir_.path(), CreateReferenceBackend());
  for (const int32_t length : {13, 41}) {
    const std::vector<TokenId> prompt = RandomPrompt(length, /*seed=*/2);

    const auto got = gpu->RunAndScore({{.sequence = gpu->AddSequence(), .tokens = prompt}}, 8);
    const auto expected =
        reference->RunAndScore({{.sequence = reference->AddSequence(), .tokens = prompt}}, 8);

    ASSERT_EQ(got.size(), prompt.size());
    for (size_t i = 0; i < prompt.size(); ++i) {
      ExpectClose(got[i], expected[i], kTolerance);
    }
  }
}

TEST_P(GpuModelTest, WithFp8ItStaysNearTheReference) { ExpectNearReference(kFp8, kFp8Tolerance); }

INSTANTIATE_TEST_SUITE_P(Families,
                         GpuModelTest,
                         testing::ValuesIn(Families()),
                         [](const auto& test) { return test.param.name; });

class GpuStepTest : public testing::Test {
 protected:
  void SetUp() override { WriteRandomModel(DecoderConfig("LlamaForCausalLM"), /*seed=*/3, &dir_); }

  // Feeds the prompts, then decodes `steps` tokens of all in batches. Returns the logits of every
  // step.
  std::vector<std::vector<std::vector<float>>> Decode(const GpuBackendOptions& options,
                                                      const std::vector<int32_t>& lengths,
                                                      int steps) {
    Served served(dir_.path(), MakeGpuBackend(options));
    std::vector<ModelRunner::Slice> slices;
    for (size_t i = 0; i < lengths.size(); ++i) {
      const int sequence = served->AddSequence();
      const auto logits = served->Feed(sequence, RandomPrompt(lengths[i], i), lengths[i]);
      slices.push_back({.sequence = sequence, .tokens = {Greedy(logits)}});
    }
    std::vector<std::vector<std::vector<float>>> all;
    for (int step = 0; step < steps; ++step) {
      all.push_back(served->Run(slices));
      for (size_t i = 0; i < slices.size(); ++i) {
        slices[i].tokens = {Greedy(all.back()[i])};
      }
    }
    return all;
  }

  ModelDir dir_;
};

// Three sequences are padded to four. The context crosses a block border. No memory was reserved,
// so a wider block table drops the graphs.
TEST_F(GpuStepTest, RepeatedGraphsGiveTheBitsOfEagerSteps) {
  const std::vector<int32_t> lengths = {5, 13, 29};
  for (const auto quantization : kQuantizations) {
    const auto graphs =
        Decode({.use_graphs = true, .quantization = quantization}, lengths, /*steps=*/6);
    const auto eager =
        Decode({.use_graphs = false, .quantization = quantization}, lengths, /*steps=*/6);

    EXPECT_EQ(graphs, eager);
  }
}

// Both runners' steps have one shape and one model. Only the pool differs.
TEST_F(GpuStepTest, ARecordIsNotReplayedForOperationsOnAnotherPool) {
  auto backend = MakeGpuBackend({.use_graphs = true});
  auto model = LoadModel(dir_.path(), *backend, nullptr);
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_TRUE((*model)->Reserve({.max_tokens = 64, .max_seqs = 4, .max_blocks_per_seq = 4}).ok());
  ModelRunner first(**model, *backend, kNumBlocks);
  ModelRunner second(**model, *backend, kNumBlocks);
  Served eager(dir_.path(), MakeGpuBackend({.use_graphs = false}));
  ASSERT_EQ(first.AddSequence(), 0);
  ASSERT_EQ(second.AddSequence(), 0);
  first.Feed(0, RandomPrompt(9, 1), 9);
  second.Feed(0, RandomPrompt(9, 2), 9);
  ASSERT_EQ(eager->AddSequence(), 0);
  ASSERT_EQ(eager->AddSequence(), 1);
  eager->Feed(0, RandomPrompt(9, 1), 9);
  eager->Feed(1, RandomPrompt(9, 2), 9);
  for (TokenId token = 0; token < 4; ++token) {  // eager, recorded, repeated
    EXPECT_EQ(first.Run({{.sequence = 0, .tokens = {token}}}),
              eager->Run({{.sequence = 0, .tokens = {token}}}))
        << token;
    EXPECT_EQ(second.Run({{.sequence = 0, .tokens = {token}}}),
              eager->Run({{.sequence = 1, .tokens = {token}}}))
        << token;
  }
}

// Two shapes take turns. With one graph each step's record takes the place of the other.
TEST_F(GpuStepTest, GraphsThatAreDroppedAreRecordedAnew) {
  Served graphs(dir_.path(), MakeGpuBackend({.use_graphs = true, .max_graphs = 1}));
  Served eager(dir_.path(), MakeGpuBackend({.use_graphs = false}));
  for (Served* served : {&graphs, &eager}) {
    ASSERT_EQ((*served)->AddSequence(), 0);
    ASSERT_EQ((*served)->AddSequence(), 1);
    (*served)->Feed(0, RandomPrompt(4, 7), 4);
    (*served)->Feed(1, RandomPrompt(6, 8), 6);
  }
  for (TokenId token = 0; token < 6; ++token) {
    for (const auto& slices :
         {std::vector<ModelRunner::Slice>{{.sequence = 0, .tokens = {token}}},
          std::vector<ModelRunner::Slice>{{.sequence = 0, .tokens = {5}},
                                          {.sequence = 1, .tokens = {token}}}}) {
      ASSERT_EQ(graphs->Run(slices), eager->Run(slices)) << token;
    }
  }
}

// Padding consists of rows without a sequence and slots without a block. Their tables name the null
// block, which must not change.
TEST_F(GpuStepTest, PaddingWritesNothing) {
  auto backend = MakeGpuBackend();
  auto model = LoadModel(dir_.path(), *backend, nullptr);
  ASSERT_TRUE(model.ok()) << model.status();
  ModelRunner runner(**model, *backend, kNumBlocks);
  const KvCacheView& cache = runner.cache();
  const int64_t floats = cache.layout.block_bytes() / int64_t{sizeof(float)};
  const std::vector<float> zeros(static_cast<size_t>(floats), 0.0F);
  backend->Upload(cache.base, zeros.data(), cache.layout.block_bytes());
  std::vector<ModelRunner::Slice> decodes;
  for (int i = 0; i < 3; ++i) {
    decodes.push_back({.sequence = runner.AddSequence(), .tokens = {i + 1}});
  }
  for (int step = 0; step < 4; ++step) {  // eager, recorded, repeated
    runner.Run(decodes);
  }
  EXPECT_EQ(ReadBack(*backend, cache.base, floats), zeros);
}

// The value is the stored number times the scale. A scale of 2^-6 moves numbers of about 1 to the
// upper end of e4m3, which changes little. With 2^-20 all of them lie beyond its end and read as
// nearly zero.
TEST_F(GpuStepTest, AnFp8CacheIsStoredWithTheScalesOfTheCheckpoint) {
  auto logits = [this](float k_scale, float v_scale, DType cache_dtype) {
    std::map<std::string, float> scales;
    for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
      scales[layer + "self_attn.k_scale"] = k_scale;
      scales[layer + "self_attn.v_scale"] = v_scale;
    }
    WriteRandomModel(DecoderConfig("LlamaForCausalLM"), /*seed=*/3, &dir_, scales);
    Served served(dir_.path(), MakeGpuBackend(), cache_dtype);
    const int sequence = served->AddSequence();
    served->Feed(sequence, RandomPrompt(40, 1), 17);
    return served->Run({{.sequence = sequence, .tokens = {5}}}).front();
  };
  const std::vector<float> expected = logits(1.0F, 1.0F, DType::kBF16);

  const double unscaled = Distance(logits(1.0F, 1.0F, DType::kF8E4M3), expected);
  EXPECT_LT(unscaled, kTolerance);
  EXPECT_LT(Distance(logits(0x1p-6F, 0x1p-5F, DType::kF8E4M3), expected), 1.5 * unscaled);
  EXPECT_GT(Distance(logits(0x1p-20F, 1.0F, DType::kF8E4M3), expected), 4 * unscaled);
  EXPECT_GT(Distance(logits(1.0F, 0x1p-20F, DType::kF8E4M3), expected), 4 * unscaled);
  EXPECT_EQ(logits(0x1p-20F, 0x1p-20F, DType::kBF16), expected) << "a cache of 16 bits has none";
}

// A long prompt between decodes needs a larger workspace at another address, so the recorded graphs
// must go.
TEST_F(GpuStepTest, ALargerWorkspaceDoesNotLeaveGraphsBehindThatReadTheOldOne) {
  Served graphs(dir_.path(),
                MakeGpuBackend({.use_graphs = true, .quantization = GpuQuantization::kFp8}));
  Served eager(dir_.path(),
               MakeGpuBackend({.use_graphs = false, .quantization = GpuQuantization::kFp8}));
  const std::vector<TokenId> long_prompt = RandomPrompt(200, 8);
  ModelRunner::Slice decode = {.sequence = 0, .tokens = {5}};
  for (Served* served : {&graphs, &eager}) {
    ASSERT_EQ((*served)->AddSequence(), 0);
    ASSERT_EQ((*served)->AddSequence(), 1);
    (*served)->Feed(0, RandomPrompt(4, 7), 4);
  }

  for (int step = 0; step < 8; ++step) {
    if (step == 4) {
      ASSERT_EQ(graphs->Feed(1, long_prompt, 200), eager->Feed(1, long_prompt, 200));
    }
    const auto expected = eager->Run({decode});
    ASSERT_EQ(graphs->Run({decode}), expected) << step;
    decode.tokens = {Greedy(expected.front())};
  }
}

// All memory of the model is allocated already; only the buffers that FP8 quantises into grow. The
// recorded graphs must go all the same. (ASan finds reads of freed memory.)
TEST_F(GpuStepTest, MoreRowsToQuantiseDoNotLeaveGraphsBehindThatReadTheOldOnes) {
  Served graphs(dir_.path(),
                MakeGpuBackend({.use_graphs = true, .quantization = GpuQuantization::kFp8}));
  Served eager(dir_.path(),
               MakeGpuBackend({.use_graphs = false, .quantization = GpuQuantization::kFp8}));
  ModelRunner::Slice decode = {.sequence = 0, .tokens = {5}};
  for (Served* served : {&graphs, &eager}) {
    ASSERT_TRUE(served->model().Reserve({.max_tokens = 512, .max_seqs = 8}).ok());
    ASSERT_EQ((*served)->AddSequence(), 0);
    ASSERT_EQ((*served)->AddSequence(), 1);
    // With 256 bytes a token these prompts stay just below a power of two; the inputs of a step are
    // just above one.
    (*served)->Feed(0, RandomPrompt(126, 7), 126);
  }

  for (int step = 0; step < 8; ++step) {
    if (step == 4) {
      const std::vector<TokenId> longer = RandomPrompt(140, 8);
      ASSERT_EQ(graphs->Feed(1, longer, 140), eager->Feed(1, longer, 140));
    }
    const auto expected = eager->Run({decode});
    ASSERT_EQ(graphs->Run({decode}), expected) << step;
    decode.tokens = {Greedy(expected.front())};
  }
}

// All memory is allocated already, except the plan of the splits, which grows with the number of
// decoding sequences. (At a graph's launch the emulated device checks the memory that it refers
// to.)
TEST_F(GpuStepTest, MoreSequencesDoNotLeaveGraphsBehindThatReadTheOldPlan) {
  constexpr int32_t kSplitTokens = 256;  // of this model
  ModelDir dir;
  WriteRandomModel(DecoderConfig("LlamaForCausalLM",
                                 {{"hidden_size", 64},
                                  {"intermediate_size", 64},
                                  {"num_hidden_layers", 1},
                                  {"num_attention_heads", 2},
                                  {"num_key_value_heads", 1},
                                  {"max_position_embeddings", 2048}}),
                   /*seed=*/5,
                   &dir);
  Served graphs(dir.path(), MakeGpuBackend({.use_graphs = true}), std::nullopt, /*num_blocks=*/128);
  Served eager(dir.path(), MakeGpuBackend({.use_graphs = false}), std::nullopt, /*num_blocks=*/128);
  for (Served* served : {&graphs, &eager}) {
    ASSERT_TRUE(served->model().Reserve({.max_tokens = 256, .max_seqs = 8}).ok());
    for (int sequence = 0; sequence < 4; ++sequence) {
      ASSERT_EQ((*served)->AddSequence(), sequence);
    }
    // There are five splits. With three more sequences there are eight, for which there is room.
    (*served)->Feed(0, RandomPrompt(4 * kSplitTokens + 8, 9), 256);
  }
  const std::vector<ModelRunner::Slice> alone = {{.sequence = 0, .tokens = {5}}};
  std::vector<ModelRunner::Slice> together = alone;
  for (int step = 0; step < 3; ++step) {  // eager, recorded, repeated
    ASSERT_EQ(graphs->Run(alone), eager->Run(alone)) << step;
  }
  for (int sequence = 1; sequence < 4; ++sequence) {
    const std::vector<TokenId> prompt = RandomPrompt(6, 10);
    ASSERT_EQ(graphs->Feed(sequence, prompt, 6), eager->Feed(sequence, prompt, 6));
    together.push_back({.sequence = sequence, .tokens = {sequence}});
  }
  ASSERT_EQ(graphs->Run(together), eager->Run(together));

  ASSERT_EQ(graphs->Run(alone), eager->Run(alone));
}

// The table of rotations grows with the longest position. No other memory of the step grows.
TEST_F(GpuStepTest, AFartherPositionDoesNotLeaveGraphsBehindThatReadTheOldRotations) {
  Served graphs(dir_.path(), MakeGpuBackend({.use_graphs = true}), std::nullopt, /*num_blocks=*/96);
  Served eager(dir_.path(), MakeGpuBackend({.use_graphs = false}), std::nullopt, /*num_blocks=*/96);
  const std::vector<TokenId> far = RandomPrompt(1030, 8);
  ModelRunner::Slice decode = {.sequence = 0, .tokens = {5}};
  for (Served* served : {&graphs, &eager}) {
    ASSERT_TRUE(served->model().Reserve({.max_tokens = 512, .max_seqs = 8}).ok());
    ASSERT_EQ((*served)->AddSequence(), 0);
    ASSERT_EQ((*served)->AddSequence(), 1);
    (*served)->Feed(0, RandomPrompt(4, 7), 4);
    (*served)->Feed(1, std::span(far).first(1020), 204);  // all that scratch memory will hold
  }
  for (int step = 0; step < 3; ++step) {  // eager, recorded, repeated
    ASSERT_EQ(graphs->Run({decode}), eager->Run({decode})) << step;
  }
  ASSERT_EQ(graphs->Feed(1, std::span(far).last(10), 10),
            eager->Feed(1, std::span(far).last(10), 10));

  ASSERT_EQ(graphs->Run({decode}), eager->Run({decode}));
}

// Layers with a window and layers without read plans of their own, each made once a step. The last
// layer reads the plan of the first. The context has three splits.
TEST_F(GpuStepTest, LayersOfDifferentWindowsHaveDifferentSplits) {
  ModelDir dir;
  WriteRandomModel(
      DecoderConfig("Qwen2ForCausalLM",
                    {{"num_hidden_layers", 3},
                     {"use_sliding_window", true},
                     {"sliding_window", 24},
                     {"layer_types", {"full_attention", "sliding_attention", "full_attention"}}}),
      /*seed=*/6,
      &dir);
  Served gpu(dir.path(), MakeGpuBackend());
  Served reference(dir.path(), CreateReferenceBackend());
  const std::vector<TokenId> prompt = RandomPrompt(600, 11);
  for (Served* served : {&gpu, &reference}) {
    ASSERT_EQ((*served)->AddSequence(), 0);
    (*served)->Feed(0, prompt, 200);
  }
  for (TokenId token = 1; token < 4; ++token) {
    ExpectClose(gpu->Run({{.sequence = 0, .tokens = {token}}}).front(),
                reference->Run({{.sequence = 0, .tokens = {token}}}).front(),
                kTolerance);
  }
}

TEST_F(GpuStepTest, ASequenceHasTheSameBitsAloneAndInABatch) {
  for (const auto quantization : kQuantizations) {
    const auto batch = Decode({.quantization = quantization}, {5, 13, 29}, /*steps=*/4);

    const auto alone = Decode({.quantization = quantization}, {5}, /*steps=*/4);

    for (size_t step = 0; step < alone.size(); ++step) {
      EXPECT_EQ(alone[step][0], batch[step][0]) << step;
    }
  }
}

// A step has a decoding sequence between two prefills. Each goes to its own kernel.
TEST_F(GpuStepTest, DecodesAndPrefillsShareAStep) {
  Served together(dir_.path(), MakeGpuBackend());
  Served apart(dir_.path(), MakeGpuBackend());
  const std::vector<TokenId> first = RandomPrompt(20, 4);
  const std::vector<TokenId> second = RandomPrompt(33, 5);
  for (Served* served : {&together, &apart}) {
    for (int sequence = 0; sequence < 3; ++sequence) {
      ASSERT_EQ((*served)->AddSequence(), sequence);
    }
    (*served)->Feed(1, RandomPrompt(9, 6), 9);
  }
  const ModelRunner::Slice decode = {.sequence = 1, .tokens = {7}};

  const auto mixed =
      together->Run({{.sequence = 0, .tokens = first}, decode, {.sequence = 2, .tokens = second}});

  EXPECT_EQ(mixed[0], apart->Feed(0, first, 20));
  EXPECT_EQ(mixed[1], apart->Run({decode}).front());
  EXPECT_EQ(mixed[2], apart->Feed(2, second, 33));
}

struct LoadedSize {
  int64_t weight_bytes = 0;
  int64_t used_bytes = 0;  // of the device, by everything that loading left behind
};

LoadedSize SizeOfLoaded(const std::string& model_dir, const GpuBackendOptions& options) {
  auto backend = MakeGpuBackend(options);
  const int64_t free_before = backend->space()->free_bytes;
  auto model = LoadModel(model_dir, *backend, nullptr);
  EXPECT_TRUE(model.ok()) << model.status();
  return {.weight_bytes = (*model)->weight_bytes(),
          .used_bytes = free_before - backend->space()->free_bytes};
}

// The matrices of a layer take one byte an element and four a row, instead of two an element. All
// other memory stays the same, and the matrices that they were made from are freed.
TEST_F(GpuStepTest, Fp8WeightsTakeHalfTheMemory) {
  constexpr int64_t kQkv = int64_t{(4 + 2 * 2) * 64} * 128;
  constexpr int64_t kOut = int64_t{128} * 4 * 64;
  constexpr int64_t kMlp = int64_t{3} * 192 * 128;
  constexpr int64_t kRows = (4 + 2 * 2) * 64 + 128 + 2 * 192 + 128;
  constexpr int64_t kSaved = 2 * (kQkv + kOut + kMlp - 4 * kRows);

  const LoadedSize fp8 = SizeOfLoaded(dir_.path(), kFp8);
  const LoadedSize bf16 = SizeOfLoaded(dir_.path(), {});

  EXPECT_EQ(bf16.weight_bytes - fp8.weight_bytes, kSaved);
  EXPECT_EQ(bf16.used_bytes - fp8.used_bytes, kSaved);
}

TEST_F(GpuStepTest, Fp8IsAnotherComputationAndSaysSo) {
  EXPECT_NE(Decode({}, {13}, /*steps=*/1), Decode(kFp8, {13}, /*steps=*/1));
  EXPECT_NE(MakeGpuBackend(kFp8)->name(), MakeGpuBackend()->name());
}

// Two parts of different heights and more than one staging memory. Row n holds one value, n + 1:
// with a row of ones its product is that value times the columns, and any row or scale that lands
// elsewhere shows.
TEST(GpuBackendTest, Fp8WeightsGoThroughTheStagingMemoryInOrder) {
  constexpr int64_t kCols = 4096;
  constexpr int64_t kFirstRows = 1200;  // of fp32: 19 MB
  constexpr int64_t kSecondRows = 80;
  constexpr double kBf16Rounding = 4e-3;
  if (DeviceName() != "emu") {
    GTEST_SKIP() << "reads the memory of the device as the host's";
  }
  std::vector<float> weights;
  for (int64_t n = 0; n < kFirstRows + kSecondRows; ++n) {
    weights.insert(weights.end(), size_t{kCols}, static_cast<float>(n + 1));
  }
  const MatrixView parts[] = {
      {.data = weights.data(), .rows = kFirstRows, .cols = kCols},
      {.data = weights.data() + kFirstRows * kCols, .rows = kSecondRows, .cols = kCols}};
  const std::vector<float> bias(size_t{kFirstRows + kSecondRows}, 4096.0F);
  auto backend = MakeGpuBackend(kFp8);

  auto packed = backend->PackLinear({.parts = parts, .bias = bias, .is_quantizable = true});
  ASSERT_TRUE(packed.ok()) << packed.status();
  auto x = *backend->Allocate(kCols * SizeOf(DType::kBF16));
  auto y = *backend->Allocate((*packed)->out_features() * SizeOf(DType::kBF16));
  const std::vector<gpu::Bf16> ones(size_t{kCols}, gpu::FromFloat<gpu::Bf16>(1.0F));
  backend->Upload(x->data(), ones.data(), x->size_bytes());
  backend->Linear({.num_tokens = 1, .x = x->data(), .y = y->data(), .weight = packed->get()});

  ReadBack(*backend, y->data(), 1);  // waits
  const auto* products = static_cast<const gpu::Bf16*>(y->data());
  for (int64_t n = 0; n < (*packed)->out_features(); ++n) {
    const double expected = kCols * static_cast<double>(n + 1) + 4096.0;
    ASSERT_NEAR(gpu::ToFloat(products[n]), expected, kBf16Rounding * expected) << n;
  }
}

// An older GPU or library has the product in 16 bits and lacks it in 8.
TEST(GpuBackendTest, Fp8IsRefusedWhereTheLibraryHasNoSuchProducts) {
  ModelDir dir;
  WriteRandomModel(DecoderConfig("LlamaForCausalLM"), /*seed=*/1, &dir);
  auto library = GpuLibrary::Open(DeviceName(), 0);
  ASSERT_TRUE(library.ok()) << library.status();
  gpu::GpuApi without_fp8 = library->api();
  without_fp8.check_gemm = [](void*, const gpu::GemmArgs& args) {
    const bool is_missing = args.dtype == DType::kF8E4M3 && args.bias != nullptr;
    return is_missing ? gpu::kUnsupported : 0;
  };
  auto backend = CreateGpuBackend(GpuLibrary(without_fp8, library->device()), kFp8);
  ASSERT_TRUE(backend.ok()) << backend.status();

  auto model = LoadModel(dir.path(), **backend, nullptr);

  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(model.status().message())
                .find("FP8 products with a scale for each row and column are not supported"),
            std::string::npos)
      << model.status();
}

TEST(GpuBackendTest, Fp8RefusesWidthsThatItsProductsDoNotTake) {
  ModelDir dir;
  WriteRandomModel(
      DecoderConfig("LlamaForCausalLM", {{"intermediate_size", 200}}), /*seed=*/1, &dir);
  auto backend = MakeGpuBackend(kFp8);

  auto model = LoadModel(dir.path(), *backend, nullptr);

  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(
      std::string(model.status().message()).find("intermediate_size must be a multiple of 16"),
      std::string::npos);
  EXPECT_TRUE(LoadModel(dir.path(), *MakeGpuBackend(), nullptr).ok());
}

TEST(GpuBackendTest, SpaceIsThatOfItsOwnDevice) {
  if (DeviceName() != "emu") {
    GTEST_SKIP() << "needs two devices";
  }
  constexpr int64_t kBytes = 1 << 20;
  auto library = GpuLibrary::Open(DeviceName(), 1);
  ASSERT_TRUE(library.ok()) << library.status();
  auto backend = CreateGpuBackend(*library, {});
  ASSERT_TRUE(backend.ok()) << backend.status();
  const int64_t free_before = (*backend)->space()->free_bytes;

  auto memory = (*backend)->Allocate(kBytes);

  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ((*backend)->space()->free_bytes, free_before - kBytes);
}

TEST(GpuBackendTest, RefusesAModelForWhichThereIsNoKernel) {
  ModelDir dir;
  WriteRandomModel(DecoderConfig("LlamaForCausalLM", {{"head_dim", 48}}), /*seed=*/1, &dir);
  auto backend = MakeGpuBackend();

  auto model = LoadModel(dir.path(), *backend, nullptr);

  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(model.status().message()).find("head_dim 48"), std::string::npos);
}

TEST(GpuLibraryTest, ALibraryThatIsNotThereIsAnErrorWithAReason) {
  auto library = GpuLibrary::Open("nosuch", 0);

  ASSERT_FALSE(library.ok());
  EXPECT_EQ(library.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(library.status().message()).find("quire_nosuch.so"), std::string::npos);
}

}  // namespace
}  // namespace quire
