// A model that is split over ranks gives the bits of the model in one piece: every golden family
// that divides, every instruction set, every cache type. The ranks are threads here.
#include "tests/worker/model/split_model.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/check.h"
#include "common/base/error.h"
#include "kernels/collective/communicator.h"
#include "kernels/collective/peer_link.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/kernels/cpu_backends.h"
#include "tests/support/random.h"
#include "tests/support/rank_group.h"
#include "tests/worker/model/model_dir.h"
#include "tests/worker/model/model_runner.h"
#include "tests/worker/model/random_model.h"
#include "worker/model/model.h"

#include <sys/socket.h>

namespace quire {
namespace {

constexpr char kTestData[] = "tests/worker/model/testdata";

// Two ranks with a wire between them. Bit 0x20 of one byte that rank 1 sends flips on the way. The
// caller names the third byte of a float, so the bit is one of the mantissa.
class FlippingWire {
 public:
  explicit FlippingWire(int64_t byte) : byte_(byte) {
    std::array<std::array<int, 2>, 2> pairs = {};  // of each rank, its end first
    for (size_t rank = 0; rank < 2; ++rank) {
      QUIRE_CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[rank].data()) == 0);
      std::vector<PeerLink> links;
      links.emplace_back(pairs[rank][0]);
      group_.push_back(
          std::make_shared<Communicator>(static_cast<int32_t>(rank), std::move(links)));
    }
    threads_.emplace_back([this, pairs] { Carry(pairs[0][1], pairs[1][1], kNever); });
    threads_.emplace_back([this, pairs] { Carry(pairs[1][1], pairs[0][1], byte_); });
  }
  ~FlippingWire() {
    for (const auto& rank : group_) {
      rank->Abort();
    }
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }
  FlippingWire(const FlippingWire&) = delete;
  FlippingWire& operator=(const FlippingWire&) = delete;

  const std::vector<std::shared_ptr<Communicator>>& group() const { return group_; }

 private:
  static constexpr int64_t kNever = -1;

  static void Carry(int from, int to, int64_t flip_at) {
    std::array<uint8_t, 4096> bytes = {};
    int64_t begin = 0;
    for (ssize_t size = 0; (size = ::recv(from, bytes.data(), bytes.size(), 0)) > 0;
         begin += size) {
      if (flip_at >= begin && flip_at < begin + size) {
        bytes[static_cast<size_t>(flip_at - begin)] ^= 0x20;
      }
      static_cast<void>(::send(to, bytes.data(), static_cast<size_t>(size), MSG_NOSIGNAL));
    }
    ::close(from);
  }

  const int64_t byte_;
  std::vector<std::shared_ptr<Communicator>> group_;
  std::vector<std::thread> threads_;
};

std::vector<std::string> Isas() { return {"amx", "avx512bf16", "avx512", "avx2", "portable"}; }

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

TEST_P(TensorParallelTest, RanksCountEveryWeightOnce) {
  const uint64_t whole = SplitModel(model_dir(), isa(), 1, DType::kF32).weights_sum();
  EXPECT_NE(whole, 0U);
  const auto config = LoadModelConfig(model_dir());
  ASSERT_TRUE(config.ok()) << config.status();
  for (const int32_t size : {2, 4}) {
    if (!ShareOf(*config, {.rank = 0, .size = size}).ok()) {
      GTEST_SKIP() << size << " ranks do not divide this model";
    }
    EXPECT_EQ(SplitModel(model_dir(), isa(), size, DType::kF32).weights_sum(), whole) << size;
  }
}

// Expects the numbers of Hugging Face transformers, with the tolerance of model_golden_test.cc.
TEST_P(TensorParallelTest, GivesTransformersTokens) {
  constexpr double kTolerance = 1e-4;
  const auto config = LoadModelConfig(model_dir());
  ASSERT_TRUE(config.ok()) << config.status();
  if (RoundsToBF16(isa()) && config->dtype == DType::kBF16) {
    GTEST_SKIP() << "rounds activations, as transformers in fp32 does not";
  }
  for (const int32_t size : {2, 4}) {
    if (!ShareOf(*config, {.rank = 0, .size = size}).ok()) {
      GTEST_SKIP() << size << " ranks do not divide this model";
    }
    SplitModel split(model_dir(), isa(), size, DType::kF32);
    int sequence = 0;
    for (const GoldenCase& golden : ReadGolden(model_dir() + "/golden.json")) {
      SCOPED_TRACE(testing::Message() << size << " ranks, prompt of " << golden.prompt.size());
      split.AddSequence();
      Logits logits = split.Run({{.sequence = sequence, .tokens = golden.prompt}});
      for (const GoldenStep& step : golden.steps) {
        const std::vector<double> logprobs = LogSoftmax(logits.front());
        const auto best = std::max_element(logprobs.begin(), logprobs.end());
        ASSERT_EQ(best - logprobs.begin(), step.token);
        ASSERT_NEAR(*best, step.logprob, kTolerance);
        for (size_t i = 0; i < step.top_tokens.size(); ++i) {
          const double got = logprobs[static_cast<size_t>(step.top_tokens[i])];
          ASSERT_NEAR(got, step.top_logprobs[i], kTolerance);
        }
        logits = split.Run({{.sequence = sequence, .tokens = {step.token}}});
      }
      ++sequence;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families,
                         TensorParallelTest,
                         testing::Combine(testing::ValuesIn(GoldenModels(kTestData)),
                                          testing::ValuesIn(Isas())),
                         [](const auto& param_info) {
                           return std::get<0>(param_info.param) + "_" +
                                  std::get<1>(param_info.param);
                         });

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

// Here two ranks share one KV head, and every rank has the norms.
TEST(TensorParallelSizesTest, EightRanksCountEveryWeightOnce) {
  ModelDir dir;
  WriteRandomModel(EightHeads(), 3, &dir);
  const uint64_t whole = SplitModel(dir.path(), "portable", 1, DType::kF32).weights_sum();
  for (const int32_t size : {2, 4, 8}) {
    EXPECT_EQ(SplitModel(dir.path(), "portable", size, DType::kF32).weights_sum(), whole) << size;
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

TEST(RowHashTest, IsEqualOnAllRanksAndOfTheStep) {
  ModelDir dir;
  WriteRandomModel(EightHeads(), 3, &dir);
  for (const int32_t size : {2, 4, 8}) {
    SplitModel split(dir.path(), "portable", size, DType::kF32);
    split.AddSequence();
    std::vector<uint64_t> of_steps;
    for (const TokenId token : {1, 2, 3}) {
      split.Run({{.sequence = 0, .tokens = {token, 7, 9}}});
      const std::vector<uint64_t> hashes = split.RowHashes();
      EXPECT_THAT(hashes, testing::Each(hashes.front()));
      EXPECT_NE(hashes.front(), 0U);
      EXPECT_THAT(of_steps, testing::Not(testing::Contains(hashes.front())));
      of_steps.push_back(hashes.front());
    }
  }
  SplitModel whole(dir.path(), "portable", 1, DType::kF32);
  whole.AddSequence();
  whole.Run({{.sequence = 0, .tokens = {1}}});
  EXPECT_THAT(whole.RowHashes(), testing::ElementsAre(0U));
}

// A bit flips in each sum of the step: the embedding's, and two of each layer. The token is not the
// last one, whose row alone is sampled.
TEST(RowHashTest, OneBitThatFlipsOnTheWayToOneRankIsSeenInThatStep) {
  const std::vector<TokenId> tokens = {1, 2, 90, 4};  // the third has its row on rank 1
  constexpr int64_t kRowBytes = 64 * sizeof(float);
  const int64_t sum_bytes = static_cast<int64_t>(tokens.size()) * kRowBytes;
  ModelDir dir;
  WriteRandomModel(EightHeads(), 3, &dir);
  for (int64_t sum = 0; sum < 5; ++sum) {
    FlippingWire wire(sum * sum_bytes + 2 * kRowBytes + 2);
    SplitModel split(dir.path(), "portable", wire.group(), DType::kF32);
    split.AddSequence();
    split.Run({{.sequence = 0, .tokens = tokens}});
    EXPECT_NE(split.RowHashes()[0], split.RowHashes()[1]) << "sum " << sum;
  }
}

TEST(TensorParallelSizesTest, AModelThatDoesNotDivideIsRefused) {
  auto backend = MakeBackend("portable");
  const auto model = LoadModel(
      std::string(kTestData) + "/llama_odd_sizes", *backend, nullptr, {.rank = 0, .size = 2});
  EXPECT_EQ(ReasonOf(model.status()), "TENSOR_PARALLEL_SIZE");
}

}  // namespace
}  // namespace quire
