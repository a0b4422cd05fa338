// A model that is split over ranks gives the bits of the model in one piece: every golden family
// that divides, every instruction set, every cache type. The ranks are threads here.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/random.h"
#include "tests/support/rank_group.h"
#include "tests/worker/model/model_dir.h"
#include "tests/worker/model/model_runner.h"
#include "tests/worker/model/random_model.h"
#include "worker/model/model.h"

namespace quire {
namespace {

using Logits = std::vector<std::vector<float>>;

constexpr char kTestData[] = "tests/worker/model/testdata";
constexpr int64_t kBlocks = 64;

std::unique_ptr<KernelBackend> MakeBackend(const std::string& isa, int num_threads = 1) {
  auto backend = CreateCpuBackend({.num_threads = num_threads, .isa = isa});
  return backend.ok() ? std::move(*backend) : nullptr;
}

// Ranks of one model, each with a pool of its own.
class SplitModel {
 public:
  SplitModel(const std::string& model_dir, const std::string& isa, int32_t size, DType dtype)
      : size_(size) {
    const auto group = ConnectRanks(size);
    for (int32_t rank = 0; rank < size; ++rank) {
      Rank& r = ranks_.emplace_back();
      // Threads do not change bits, so let ranks have different numbers of them.
      r.backend = MakeBackend(isa, 1 + rank % 2);
      auto model = LoadModel(model_dir, *r.backend, nullptr, {.rank = rank, .size = size});
      EXPECT_TRUE(model.ok()) << model.status();
      r.model = *std::move(model);
      if (size > 1) {
        EXPECT_TRUE(r.backend->JoinGroup(group[static_cast<size_t>(rank)]).ok());
      }
      r.runner = std::make_unique<ModelRunner>(*r.model, *r.backend, kBlocks, dtype);
    }
  }

  void AddSequence() {
    for (Rank& rank : ranks_) {
      rank.runner->AddSequence();
    }
  }

  // The logits, which rank 0 has.
  Logits Run(const std::vector<ModelRunner::Slice>& slices) {
    std::vector<Logits> logits(ranks_.size());
    OnAllRanks(size_, [&](int32_t rank) {
      const auto i = static_cast<size_t>(rank);
      logits[i] = ranks_[i].runner->Run(slices);
    });
    for (size_t rank = 1; rank < logits.size(); ++rank) {
      EXPECT_TRUE(logits[rank].empty());
    }
    return logits.front();
  }

  int64_t weight_bytes(size_t rank) const { return ranks_[rank].model->weight_bytes(); }

 private:
  struct Rank {
    std::unique_ptr<KernelBackend> backend;
    std::unique_ptr<Model> model;
    std::unique_ptr<ModelRunner> runner;
  };

  int32_t size_;
  std::vector<Rank> ranks_;
};

// Two sequences: chunks of prompts in one batch, then single tokens, as a server would have them.
std::vector<Logits> Answers(SplitModel& model, int32_t vocab_size) {
  Random random(7);
  const auto tokens = [&](int32_t count) {
    std::vector<TokenId> ids;
    for (int32_t i = 0; i < count; ++i) {
      ids.push_back(random.Below(vocab_size));
    }
    return ids;
  };
  model.AddSequence();
  model.AddSequence();
  std::vector<Logits> answers;
  answers.push_back(model.Run({{.sequence = 0, .tokens = tokens(19)}}));
  answers.push_back(
      model.Run({{.sequence = 0, .tokens = tokens(5)}, {.sequence = 1, .tokens = tokens(11)}}));
  for (int step = 0; step < 3; ++step) {
    answers.push_back(
        model.Run({{.sequence = 0, .tokens = tokens(1)}, {.sequence = 1, .tokens = tokens(1)}}));
  }
  return answers;
}

std::vector<std::string> Isas() { return {"avx512bf16", "avx512", "avx2", "portable"}; }

std::vector<std::string> Families() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kTestData)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class TensorParallelTest : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    if (MakeBackend(isa()) == nullptr) {
      GTEST_SKIP() << "this machine lacks " << isa();
    }
  }
  std::string model_dir() const { return std::string(kTestData) + "/" + std::get<0>(GetParam()); }
  std::string isa() const { return std::get<1>(GetParam()); }
};

TEST_P(TensorParallelTest, GivesTheBitsOfOneRank) {
  const auto config = LoadModelConfig(model_dir());
  ASSERT_TRUE(config.ok()) << config.status();
  if (!ShareOf(*config, {.rank = 0, .size = 2}).ok()) {
    GTEST_SKIP() << "two ranks do not divide this model";
  }
  for (const DType dtype : {DType::kF32, DType::kInt8}) {
    SplitModel whole(model_dir(), isa(), 1, dtype);
    const std::vector<Logits> expected = Answers(whole, config->vocab_size);
    for (const int32_t size : {2, 4}) {
      SplitModel split(model_dir(), isa(), size, dtype);
      EXPECT_EQ(Answers(split, config->vocab_size), expected) << size << " " << NameOf(dtype);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families,
                         TensorParallelTest,
                         testing::Combine(testing::ValuesIn(Families()), testing::ValuesIn(Isas())),
                         [](const auto& param_info) {
                           return std::get<0>(param_info.param) + "_" +
                                  std::get<1>(param_info.param);
                         });

// Odd vocabulary, one KV head for two ranks, biases.
Json EightHeads() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"vocab_size", 101},
          {"hidden_size", 64},
          {"intermediate_size", 88},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 8},
          {"num_key_value_heads", 4},
          {"max_position_embeddings", 128},
          {"attention_bias", true},
          {"mlp_bias", true}};
}

TEST(TensorParallelSizesTest, EightRanksGiveTheBitsOfOne) {
  ModelDir dir;
  WriteRandomModel(EightHeads(), 3, &dir);
  for (const std::string& isa : Isas()) {
    if (MakeBackend(isa) == nullptr) {
      continue;
    }
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kInt8, DType::kF8E4M3}) {
      SplitModel whole(dir.path(), isa, 1, dtype);
      const std::vector<Logits> expected = Answers(whole, 101);
      for (const int32_t size : {2, 4, 8}) {
        SplitModel split(dir.path(), isa, size, dtype);
        EXPECT_EQ(Answers(split, 101), expected) << isa << " " << size << " " << NameOf(dtype);
      }
    }
  }
}

TEST(TensorParallelSizesTest, RanksHoldTheirPartOfTheWeights) {
  Json config = EightHeads();
  config["vocab_size"] = 1024;
  config["num_key_value_heads"] = 8;
  config["intermediate_size"] = 128;  // no padding of narrow matrices
  config["attention_bias"] = false;
  config["mlp_bias"] = false;
  ModelDir dir;
  WriteRandomModel(config, 4, &dir);
  const int64_t whole = SplitModel(dir.path(), "portable", 1, DType::kF32).weight_bytes(0);
  const int64_t norms = int64_t{5} * 64 * int64_t{sizeof(float)};  // every rank has them
  for (const int32_t size : {2, 4, 8}) {
    const SplitModel split(dir.path(), "portable", size, DType::kF32);
    for (size_t rank = 0; rank < static_cast<size_t>(size); ++rank) {
      EXPECT_EQ(split.weight_bytes(rank), (whole - norms) / size + norms) << rank << " of " << size;
    }
  }
}

TEST(TensorParallelSizesTest, DummyWeightsAreThoseOfTheWholeModel) {
  ModelDir dir;
  WriteRandomModel(EightHeads(), 3, &dir);
  const auto logits = [&](int32_t size) {
    const auto group = ConnectRanks(size);
    std::vector<Logits> of_rank(static_cast<size_t>(size));
    OnAllRanks(size, [&](int32_t rank) {
      auto backend = MakeBackend("portable");
      auto model = MakeDummyModel(dir.path(), 5, *backend, {.rank = rank, .size = size});
      ASSERT_TRUE(model.ok()) << model.status();
      ASSERT_TRUE(backend->JoinGroup(group[static_cast<size_t>(rank)]).ok());
      ModelRunner runner(**model, *backend, kBlocks);
      runner.AddSequence();
      of_rank[static_cast<size_t>(rank)] =
          runner.Run({{.sequence = 0, .tokens = {1, 2, 3, 100, 50}}});
    });
    return of_rank.front();
  };
  EXPECT_EQ(logits(2), logits(1));
  EXPECT_EQ(logits(8), logits(1));
}

TEST(TensorParallelSizesTest, AModelThatDoesNotDivideIsRefused) {
  auto backend = MakeBackend("portable");
  const auto model = LoadModel(
      std::string(kTestData) + "/llama_odd_sizes", *backend, nullptr, {.rank = 0, .size = 2});
  EXPECT_EQ(ReasonOf(model.status()), "TENSOR_PARALLEL_SIZE");
}

}  // namespace
}  // namespace quire
