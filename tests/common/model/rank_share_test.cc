#include "common/model/rank_share.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"

namespace quire {
namespace {

using testing::HasSubstr;

ModelConfig Config(int32_t num_heads, int32_t num_kv_heads) {
  return {.vocab_size = 50'257,
          .hidden_size = 1024,
          .intermediate_size = 2816,
          .num_heads = num_heads,
          .num_kv_heads = num_kv_heads,
          .head_dim = 64};
}

TEST(RankShareTest, RanksHaveEverythingOnce) {
  const ModelConfig config = Config(16, 8);
  for (const int32_t size : {1, 2, 4, 8}) {
    RankShare end;
    for (int32_t rank = 0; rank < size; ++rank) {
      const auto share = ShareOf(config, {.rank = rank, .size = size});
      ASSERT_TRUE(share.ok()) << share.status();
      EXPECT_EQ(share->heads, (IndexRange{end.heads.begin, 16 / size}));
      EXPECT_EQ(share->kv_heads, (IndexRange{end.kv_heads.begin, 8 / size}));
      EXPECT_EQ(share->intermediate, (IndexRange{end.intermediate.begin, 2816 / size}));
      EXPECT_EQ(share->vocab.begin, end.vocab.begin);
      end.heads.begin += share->heads.count;
      end.kv_heads.begin += share->kv_heads.count;
      end.intermediate.begin += share->intermediate.count;
      end.vocab.begin += share->vocab.count;
    }
    EXPECT_EQ(end.heads.begin, 16);
    EXPECT_EQ(end.vocab.begin, 50'257) << "does not divide, and is all there";
  }
}

TEST(RankShareTest, NeighboursHoldOneKvHeadWhereThereAreFew) {
  for (int32_t rank = 0; rank < 8; ++rank) {
    const auto share = ShareOf(Config(16, 2), {.rank = rank, .size = 8});
    ASSERT_TRUE(share.ok()) << share.status();
    EXPECT_EQ(share->kv_heads, (IndexRange{rank / 4, 1}));
    // The query heads that read it are on the same rank.
    EXPECT_EQ(share->heads.begin / 8, share->kv_heads.begin);
  }
}

std::string Refusal(const ModelConfig& config, RankPlace place) {
  const auto share = ShareOf(config, place);
  EXPECT_EQ(share.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(share.status()), "TENSOR_PARALLEL_SIZE");
  return std::string(share.status().message());
}

TEST(RankShareTest, SizesThatCannotWorkAreRefusedWithTheNumbers) {
  EXPECT_EQ(Refusal(Config(16, 8), {.rank = 0, .size = 3}),
            "tensor_parallel_size: must be 1, 2, 4 or 8 (got 3)");
  EXPECT_EQ(Refusal(Config(16, 8), {.rank = 0, .size = 0}),
            "tensor_parallel_size: must be 1, 2, 4 or 8 (got 0)");
  EXPECT_EQ(Refusal(Config(16, 8), {.rank = 0, .size = 16}),
            "tensor_parallel_size: must be 1, 2, 4 or 8 (got 16)");
  EXPECT_EQ(Refusal(Config(12, 4), {.rank = 0, .size = 8}),
            "tensor_parallel_size: does not divide the heads (got 8, the model has 12)");
  EXPECT_EQ(Refusal(Config(16, 6), {.rank = 0, .size = 4}),
            "tensor_parallel_size: does not divide the KV heads (got 4, the model has 6)");
  ModelConfig few_tokens = Config(16, 8);
  few_tokens.vocab_size = 7;
  EXPECT_EQ(Refusal(few_tokens, {.rank = 0, .size = 8}),
            "tensor_parallel_size: exceeds the size of the vocabulary (got 8, the model has 7)");
  ModelConfig odd = Config(16, 8);
  odd.intermediate_size = 2820;
  EXPECT_THAT(Refusal(odd, {.rank = 0, .size = 8}),
              HasSubstr("the width of the MLP (got 8, the model has 2820)"));
  EXPECT_THAT(
      Refusal(odd, {.rank = 0, .size = 2}),
      HasSubstr("above 1, the width of the MLP must be a multiple of 8 (the model has 2820)"));
  EXPECT_EQ(Refusal(Config(16, 8), {.rank = 2, .size = 2}),
            "rank: must be below tensor_parallel_size (got 2, limit 2)");
  EXPECT_TRUE(ShareOf(odd, {}).ok()) << "one rank takes any model";
}

}  // namespace
}  // namespace quire
