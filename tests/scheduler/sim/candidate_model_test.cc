#include "scheduler/sim/candidate_model.h"

#include <cmath>
#include <set>

#include "gtest/gtest.h"

namespace quire {
namespace {

TEST(CandidateModelTest, DrawsDistinctTokensBestFirst) {
  CandidateModel model(1);
  for (int i = 0; i < 100; ++i) {
    const std::vector<TokenLogprob> candidates = model.Draw(20);
    ASSERT_EQ(candidates.size(), 20u);
    std::set<TokenId> token_ids;
    double sum = 0;
    for (size_t k = 0; k < candidates.size(); ++k) {
      EXPECT_TRUE(k == 0 || candidates[k].logprob <= candidates[k - 1].logprob);
      EXPECT_TRUE(token_ids.insert(candidates[k].token_id).second);
      sum += std::exp(double{candidates[k].logprob});
    }
    EXPECT_LE(sum, 1 + 1e-6);
  }
  EXPECT_TRUE(model.Draw(0).empty());
}

TEST(CandidateModelTest, HasTheEntropyOfItsModelsPerplexity) {
  CandidateModel model(2);
  double entropy = 0;
  constexpr int kDraws = 20'000;
  for (int i = 0; i < kDraws; ++i) {
    for (const TokenLogprob& candidate : model.Draw(64)) {
      entropy -= std::exp(double{candidate.logprob}) * double{candidate.logprob} / kDraws;
    }
  }
  EXPECT_NEAR(entropy, std::log(10.13), 0.02);
}

TEST(CandidateModelTest, FewAreTheLikeliestOfAll) {
  CandidateModel few(5);
  CandidateModel all(5);
  for (int i = 0; i < 1000; ++i) {
    std::vector<TokenLogprob> likeliest = all.Draw(64);
    likeliest.resize(6);
    EXPECT_EQ(few.Draw(6), likeliest) << "draw " << i;
  }
}

TEST(CandidateModelTest, IsAFunctionOfItsSeed) {
  CandidateModel a(3);
  CandidateModel b(3);
  CandidateModel c(4);
  const std::vector<TokenLogprob> drawn = a.Draw(5);
  EXPECT_EQ(drawn, b.Draw(5));
  EXPECT_NE(drawn, c.Draw(5));
}

}  // namespace
}  // namespace quire
