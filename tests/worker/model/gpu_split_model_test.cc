// A model that is split over ranks on GPUs gives nearly the logits of the model in one piece. Here
// the GPUs are emulated and the ranks are threads. Collectives go through main memory. A second
// program, where two ranks have a GPU each, runs them through a fake of NCCL.
//
// Tolerance: each rank rounds its part of a sum to bf16, and the sum is rounded once more, where
// one rank rounds once. That is twice a layer a relative 2^-9 of numbers as large as the parts.
// Measured: up to 5.6e-3 of the logits, and 3.0e-2 where layers have 8 bits.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "common/json/json.h"
#include "kernels/collective/communicator.h"
#include "kernels/gpu/gpu_backend.h"
#include "kernels/gpu/gpu_library.h"
#include "tests/support/random.h"
#include "tests/support/rank_group.h"
#include "tests/worker/model/model_dir.h"
#include "tests/worker/model/model_runner.h"
#include "tests/worker/model/random_model.h"
#include "worker/model/model.h"
#ifdef QUIRE_HAS_FAKE_NCCL
#include "tests/support/fake_nccl_api.h"
#else
#include "tests/support/locked_gpu_api.h"
#endif

namespace quire {
namespace {

using testing::Each;
using testing::IsEmpty;

constexpr double kTolerance = 1e-2;
constexpr double kFp8Tolerance = 6e-2;
constexpr int64_t kNumBlocks = 64;
constexpr int32_t kVocabSize = 130;  // four ranks have 32 or 33 of them
constexpr int32_t kNumDevices = 2;

GpuLibrary Library(int32_t device) {
#ifdef QUIRE_HAS_FAKE_NCCL
  gpu::DeviceInfo info;
  EXPECT_EQ(FakeNcclApi().query_device(device, &info), 0);
  return {FakeNcclApi(), info};
#else
  auto library = GpuLibrary::Open("emu", device);
  EXPECT_TRUE(library.ok()) << library.status();
  return {LockedGpuApi(library->api()), library->device()};
#endif
}

std::unique_ptr<KernelBackend> MakeBackend(int32_t device, const GpuBackendOptions& options) {
  auto backend = CreateGpuBackend(Library(device), options);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return *std::move(backend);
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
                 {"max_position_embeddings", 1024},
                 {"torch_dtype", "bfloat16"}};
  config.update(more);
  return config;
}

struct Family {
  std::string name;
  Json config;
  GpuQuantization quantization = GpuQuantization::kNone;
};

// Biases of row-parallel layers, ALiBi, learned positions, embeddings that are projected, norms of
// heads, both 16-bit types, layers of 8 bits.
std::vector<Family> Families() {
  const Json opt = {{"architectures", {"OPTForCausalLM"}},
                    {"vocab_size", kVocabSize},
                    {"hidden_size", 256},
                    {"word_embed_proj_dim", 128},
                    {"ffn_dim", 192},
                    {"num_hidden_layers", 2},
                    {"num_attention_heads", 4},
                    {"do_layer_norm_before", false},
                    {"max_position_embeddings", 1024},
                    {"torch_dtype", "bfloat16"}};
  const Json bloom = {{"architectures", {"BloomForCausalLM"}},
                      {"vocab_size", kVocabSize},
                      {"hidden_size", 256},
                      {"n_layer", 2},
                      {"n_head", 4},
                      {"torch_dtype", "bfloat16"}};
  const Json f16 = {{"torch_dtype", "float16"}, {"tie_word_embeddings", true}};
  return {
      {"llama", DecoderConfig("LlamaForCausalLM")},
      {"llama_f16_tied", DecoderConfig("LlamaForCausalLM", f16)},
      {"llama_fp8", DecoderConfig("LlamaForCausalLM"), GpuQuantization::kFp8},
      {"llama_biased",
       DecoderConfig("LlamaForCausalLM", {{"attention_bias", true}, {"mlp_bias", true}})},
      {"mistral_window", DecoderConfig("MistralForCausalLM", {{"sliding_window", 24}})},
      {"qwen2", DecoderConfig("Qwen2ForCausalLM")},
      {"qwen3", DecoderConfig("Qwen3ForCausalLM")},
      {"opt_post_norm", opt},
      {"bloom", bloom},
  };
}

using Logits = std::vector<std::vector<float>>;

// Ranks of one model. Rank r uses device r % kNumDevices.
class SplitModel {
 public:
  SplitModel(const std::string& model_dir, int32_t size, const GpuBackendOptions& options)
      : size_(size) {
    for (int32_t rank = 0; rank < size; ++rank) {
      Rank& r = ranks_.emplace_back();
      r.backend = MakeBackend(rank % kNumDevices, options);
      auto model = LoadModel(model_dir, *r.backend, nullptr, {.rank = rank, .size = size});
      EXPECT_TRUE(model.ok()) << model.status();
      r.model = *std::move(model);
      r.runner = std::make_unique<ModelRunner>(*r.model, *r.backend, kNumBlocks);
    }
    if (size > 1) {
      Join(ConnectRanks(size));
    }
  }

  void Join(const std::vector<std::shared_ptr<Communicator>>& group) {
    OnAllRanks(size_, [&](int32_t rank) {
      KernelBackend& backend = *ranks_[static_cast<size_t>(rank)].backend;
      backend.BindThread();
      EXPECT_TRUE(backend.JoinGroup(group[static_cast<size_t>(rank)]).ok());
    });
  }

  int AddSequence() {
    int sequence = 0;
    for (Rank& rank : ranks_) {
      sequence = rank.runner->AddSequence();
    }
    return sequence;
  }

  // The last rank begins its steps later than the others by this time.
  void set_late(std::chrono::milliseconds late) { late_ = late; }

  // Runs a batch on all ranks and returns the logits, which rank 0 has.
  Logits Run(const std::vector<ModelRunner::Slice>& slices) {
    std::vector<Logits> logits(ranks_.size());
    OnAllRanks(size_, [&](int32_t rank) {
      const auto i = static_cast<size_t>(rank);
      ranks_[i].backend->BindThread();
      std::this_thread::sleep_for(rank + 1 == size_ ? late_ : std::chrono::milliseconds(0));
      logits[i] = ranks_[i].runner->Run(slices);
    });
    Logits first = std::move(logits.front());
    logits.erase(logits.begin());
    EXPECT_THAT(logits, Each(IsEmpty()));
    return first;
  }

  KernelBackend& backend(size_t rank) { return *ranks_[rank].backend; }
  int64_t weight_bytes(size_t rank) const { return ranks_[rank].model->weight_bytes(); }

 private:
  struct Rank {
    std::unique_ptr<KernelBackend> backend;
    std::unique_ptr<Model> model;
    std::unique_ptr<ModelRunner> runner;
  };

  const int32_t size_;
  std::chrono::milliseconds late_{0};
  std::vector<Rank> ranks_;
};

std::vector<TokenId> RandomPrompt(int32_t length, uint64_t seed) {
  Random random(seed);
  std::vector<TokenId> prompt;
  prompt.reserve(static_cast<size_t>(length));
  for (int32_t i = 0; i < length; ++i) {
    prompt.push_back(random.Below(kVocabSize));
  }
  return prompt;
}

// Feeds two prompts in chunks, side by side, then decodes both greedily. Returns the logits of
// every step. With these prompts no two likeliest tokens are nearer than the error of 8 bits.
std::vector<Logits> Answers(SplitModel& model) {
  const int first = model.AddSequence();
  const int second = model.AddSequence();
  const std::vector<TokenId> prompt = RandomPrompt(34, 2);
  std::vector<Logits> answers;
  answers.push_back(
      model.Run({{.sequence = first, .tokens = {prompt.begin(), prompt.begin() + 17}}}));
  answers.push_back(model.Run({{.sequence = first, .tokens = {prompt.begin() + 17, prompt.end()}},
                               {.sequence = second, .tokens = RandomPrompt(9, 5)}}));
  for (int step = 0; step < 4; ++step) {
    const Logits& last = answers.back();
    answers.push_back(model.Run({{.sequence = first, .tokens = {Greedy(last[0])}},
                                 {.sequence = second, .tokens = {Greedy(last[1])}}}));
  }
  return answers;
}

void ExpectAnswersNear(const std::vector<Logits>& got,
                       const std::vector<Logits>& expected,
                       double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t step = 0; step < expected.size(); ++step) {
    ASSERT_EQ(got[step].size(), expected[step].size());
    for (size_t row = 0; row < expected[step].size(); ++row) {
      SCOPED_TRACE(testing::Message() << "step " << step << " row " << row);
      const double distance = Distance(got[step][row], expected[step][row]);
      ASSERT_TRUE(std::isfinite(distance));
      EXPECT_LE(distance, tolerance);
      ASSERT_EQ(Greedy(got[step][row]), Greedy(expected[step][row]));
    }
  }
}

class GpuSplitModelTest : public testing::TestWithParam<Family> {};

TEST_P(GpuSplitModelTest, RanksGiveTheTokensOfOneAndItsLogitsToRounding) {
  const Family& family = GetParam();
  const GpuBackendOptions options = {.quantization = family.quantization};
  ModelDir dir;
  WriteRandomModel(family.config, /*seed=*/1, &dir);
  SplitModel whole(dir.path(), 1, options);
  const std::vector<Logits> expected = Answers(whole);
  for (const int32_t size : {2, 4}) {
    SCOPED_TRACE(testing::Message() << size << " ranks");
    SplitModel split(dir.path(), size, options);
    ExpectAnswersNear(Answers(split),
                      expected,
                      family.quantization == GpuQuantization::kFp8 ? kFp8Tolerance : kTolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Families,
                         GpuSplitModelTest,
                         testing::ValuesIn(Families()),
                         [](const auto& test) { return test.param.name; });

class GpuGroupTest : public testing::Test {
 protected:
  void SetUp() override { WriteRandomModel(DecoderConfig("LlamaForCausalLM"), /*seed=*/3, &dir_); }

  ModelDir dir_;
};

// The step ends on all ranks, and every rank knows of the break. With other links they answer as
// ranks that never saw a broken group.
TEST_F(GpuGroupTest, ABrokenGroupEndsTheStepOnAllRanksAndTheNextOneWorks) {
  for (const int32_t size : {2, 4}) {
    SplitModel split(dir_.path(), size, {});
    const auto dying = ConnectRanks(size);
    split.Join(dying);
    dying.back()->Abort();
    const int sequence = split.AddSequence();
    split.Run({{.sequence = sequence, .tokens = {1, 2, 3}}});
    for (const auto& rank : dying) {
      EXPECT_EQ(ReasonOf(rank->status()), "GROUP_BROKEN");
    }

    split.Join(ConnectRanks(size));
    SplitModel fresh(dir_.path(), size, {});
    EXPECT_EQ(Answers(split), Answers(fresh)) << size;
  }
}

#ifdef QUIRE_HAS_FAKE_NCCL
TEST_F(GpuGroupTest, RanksWithAGpuEachAddUpOnThem) {
  const int before = FakeNcclLibrary().num_operations;
  SplitModel two(dir_.path(), 2, {});
  Answers(two);
  const int of_two = FakeNcclLibrary().num_operations - before;
  EXPECT_GT(of_two, 0);
  SplitModel four(dir_.path(), 4, {});
  Answers(four);
  EXPECT_EQ(FakeNcclLibrary().num_operations - before, of_two) << "four share two GPUs";
  EXPECT_THAT(FakeNcclLibrary().take_mistakes(), IsEmpty());
}
#endif

#ifdef QUIRE_HAS_FAKE_NCCL
// The first decode step runs its operations, the second is recorded, the others replay the graph.
TEST_F(GpuGroupTest, StepsOfRanksWithAGpuEachAreReplayedWithTheSameBits) {
  SplitModel eager(dir_.path(), 2, {.use_graphs = false});
  const std::vector<Logits> expected = Answers(eager);
  SplitModel replayed(dir_.path(), 2, {});

  EXPECT_EQ(Answers(replayed), expected);

  const int sequence = replayed.AddSequence();
  const int same = eager.AddSequence();
  replayed.Run({{.sequence = sequence, .tokens = {1, 2, 3}}});
  eager.Run({{.sequence = same, .tokens = {1, 2, 3}}});
  for (TokenId token = 0; token < 5; ++token) {
    const int before = FakeNcclLibrary().num_operations;
    const Logits logits = replayed.Run({{.sequence = sequence, .tokens = {token}}});
    const int enqueued = FakeNcclLibrary().num_operations - before;
    EXPECT_EQ(enqueued == 0, token >= 2) << token << ": " << enqueued;
    EXPECT_EQ(logits, eager.Run({{.sequence = same, .tokens = {token}}})) << token;
  }
  EXPECT_THAT(FakeNcclLibrary().take_mistakes(), IsEmpty());
}

// Rank 0 replays a graph whose sums wait for the lost rank. The graphs of the broken group are
// gone, and the next group records its own.
TEST_F(GpuGroupTest, ALostRankReleasesAReplayedStepAndTheNextGroupWorks) {
  SplitModel split(dir_.path(), 2, {});
  const auto dying = ConnectRanks(2);
  split.Join(dying);
  const int sequence = split.AddSequence();
  split.Run({{.sequence = sequence, .tokens = {1, 2, 3}}});
  for (TokenId token = 0; token < 3; ++token) {  // eager, recorded, repeated
    split.Run({{.sequence = sequence, .tokens = {token}}});
  }

  FakeNcclLibrary().operations_left = 3;  // then none of the two ranks' sums ends any more
  std::thread abort([&dying] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    dying.back()->Abort();
  });
  split.Run({{.sequence = sequence, .tokens = {7}}});
  abort.join();
  FakeNcclLibrary().operations_left = -1;
  for (const auto& rank : dying) {
    EXPECT_EQ(ReasonOf(rank->status()), "GROUP_BROKEN");
  }

  split.Join(ConnectRanks(2));
  SplitModel fresh(dir_.path(), 2, {});
  EXPECT_EQ(Answers(split), Answers(fresh));
  EXPECT_THAT(FakeNcclLibrary().take_mistakes(), IsEmpty());
}
#endif

// More tokens than before need more memory for rows of 8 bits. A sum still waits on the stream for
// the last rank. (The emulated device ends a test that frees memory then.)
TEST_F(GpuGroupTest, MemoryThatMovesWaitsForALateRank) {
  const auto logits = [&](std::chrono::milliseconds late) {
    SplitModel split(dir_.path(), 2, {.quantization = GpuQuantization::kFp8});
    const int sequence = split.AddSequence();
    split.Run({{.sequence = sequence, .tokens = {1, 2}}});
    split.set_late(late);
    return split.Run({{.sequence = sequence, .tokens = RandomPrompt(150, 4)}});
  };
  EXPECT_EQ(logits(std::chrono::milliseconds(50)), logits(std::chrono::milliseconds(0)));
}

#ifdef QUIRE_HAS_FAKE_NCCL
// A product of a new shape waits for the device (PlanAndRun in fake_nccl_api.cc), where a sum still
// waits for the last rank.
TEST_F(GpuGroupTest, AProductOfANewShapeWaitsForALateRank) {
  const auto logits = [&](std::chrono::milliseconds late) {
    SplitModel split(dir_.path(), 2, {});
    split.set_late(late);
    return split.Run({{.sequence = split.AddSequence(), .tokens = {1, 2, 3}}});
  };
  EXPECT_EQ(logits(std::chrono::milliseconds(50)), logits(std::chrono::milliseconds(0)));
}
#endif

// Norms are on every rank, and two of four ranks hold one KV head both.
TEST_F(GpuGroupTest, RanksHoldTheirPartOfTheWeights) {
  constexpr int64_t kNorms = int64_t{5} * 128 * sizeof(float);
  constexpr int64_t kKvHead = int64_t{2} * 64 * 128 * 2;  // K and V of a layer, in bf16
  const int64_t whole = SplitModel(dir_.path(), 1, {}).weight_bytes(0);
  const SplitModel two(dir_.path(), 2, {});
  EXPECT_EQ(two.weight_bytes(0), (whole - kNorms) / 2 + kNorms);
  EXPECT_EQ(two.weight_bytes(1), two.weight_bytes(0));
  const SplitModel four(dir_.path(), 4, {});
  int64_t all = 0;
  for (size_t rank = 0; rank < 4; ++rank) {
    all += four.weight_bytes(rank);
  }
  constexpr int64_t kLayers = 2;
  constexpr int64_t kKvHeadsHeldTwice = 2;
  EXPECT_EQ(all, whole + 3 * kNorms + kLayers * kKvHeadsHeldTwice * kKvHead);
}

TEST_F(GpuGroupTest, TheNameSaysHowManyRanksAddUp) {
  SplitModel whole(dir_.path(), 1, {});
  SplitModel split(dir_.path(), 2, {});
  EXPECT_EQ(split.backend(1).name(), whole.backend(0).name() + "-tp2");
}

TEST_F(GpuGroupTest, APartThatNoKernelTakesIsRefusedByName) {
  ModelDir dir;
  WriteRandomModel(
      DecoderConfig("LlamaForCausalLM", {{"intermediate_size", 200}}), /*seed=*/1, &dir);
  auto backend = MakeBackend(0, {});
  const auto model = LoadModel(dir.path(), *backend, nullptr, {.rank = 0, .size = 4});
  EXPECT_EQ(ReasonOf(model.status()), "DEVICE");
  EXPECT_THAT(std::string(model.status().message()),
              testing::HasSubstr("a rank's part of intermediate_size must be a multiple of 8"));
}

}  // namespace
}  // namespace quire
