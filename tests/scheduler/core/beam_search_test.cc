#include "scheduler/core/beam_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::FieldsAre;
using testing::FloatEq;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr TokenId kStop = 99;

BeamStep StepWith(BeamSearch& search, const std::vector<std::vector<BeamCandidate>>& candidates) {
  const std::vector<std::span<const BeamCandidate>> views(candidates.begin(), candidates.end());
  return search.Step(views);
}

BeamSearchParams TwoBeams() {
  return {.num_beams = 2, .num_hypotheses = 2, .max_tokens = 8, .stop_token_ids = {kStop}};
}

// Two hypotheses, {stop} with the sum -2 and {1, stop} with -2.5; the better one of the two live
// beams is {1, 3} with -1 + logprob.
BeamSearch TwoEnded(BeamSearchParams params, float logprob) {
  BeamSearch search(std::move(params));
  StepWith(search, {{{1, -1.0F}, {kStop, -2.0F}, {2, -2.5F}}});
  std::vector<BeamCandidate> after_1 = {{3, logprob}, {kStop, -1.5F}};
  if (logprob < -1.5F) {
    std::swap(after_1[0], after_1[1]);
  }
  StepWith(search, {after_1, {{4, -20.0F}}});
  return search;
}

TEST(BeamSearchTest, BeginsWithOneBeam) {
  const BeamSearch search(TwoBeams());

  EXPECT_EQ(search.beams().size(), 1U);
  EXPECT_FALSE(search.is_done());
  EXPECT_EQ(search.num_tokens(), 0);
}

TEST(BeamSearchTest, FirstStepTurnsThePromptIntoTheLikeliestBeams) {
  BeamSearch search(TwoBeams());

  const BeamStep step = StepWith(search, {{{5, -0.25F}, {6, -0.5F}, {7, -1.0F}}});

  EXPECT_THAT(step.beams, ElementsAre(FieldsAre(0, 5, -0.25F), FieldsAre(0, 6, -0.5F)));
  EXPECT_THAT(step.dropped, IsEmpty());
  EXPECT_EQ(search.num_tokens(), 1);
}

TEST(BeamSearchTest, ExtensionsOfAllBeamsAreRankedBySum) {
  BeamSearch search({.num_beams = 3, .max_tokens = 8});
  StepWith(search, {{{1, -0.5F}, {2, -1.0F}, {3, -4.0F}}});

  const BeamStep step = StepWith(search,
                                 {{{10, -1.0F}, {11, -3.0F}, {12, -5.0F}},
                                  {{20, -0.25F}, {21, -0.75F}, {22, -9.0F}},
                                  {{30, -0.125F}, {31, -0.25F}, {32, -0.5F}}});

  EXPECT_THAT(
      step.beams,
      ElementsAre(FieldsAre(1, 20, -1.25F), FieldsAre(0, 10, -1.5F), FieldsAre(1, 21, -1.75F)));
  EXPECT_THAT(step.dropped, ElementsAre(2));
}

TEST(BeamSearchTest, OfEqualScoresTheLowerBeamAndTheEarlierCandidateGoFirst) {
  BeamSearch search({.num_beams = 3, .max_tokens = 8});

  const BeamStep first = StepWith(search, {{{8, -1.0F}, {4, -1.0F}, {6, -1.0F}, {1, -1.0F}}});
  const BeamStep second =
      StepWith(search, {{{9, -2.0F}, {3, -2.0F}}, {{5, -2.0F}, {7, -2.0F}}, {{1, -2.0F}}});

  EXPECT_THAT(first.beams,
              ElementsAre(FieldsAre(0, 8, -1.0F), FieldsAre(0, 4, -1.0F), FieldsAre(0, 6, -1.0F)));
  EXPECT_THAT(second.beams,
              ElementsAre(FieldsAre(0, 9, -3.0F), FieldsAre(0, 3, -3.0F), FieldsAre(1, 5, -3.0F)));
}

TEST(BeamSearchTest, StopTokenOfATopBeamEndsItAndTheOthersFillItsPlace) {
  BeamSearch search(TwoBeams());

  const BeamStep step = StepWith(search, {{{kStop, -0.25F}, {6, -0.5F}, {7, -1.0F}}});

  EXPECT_THAT(step.beams, ElementsAre(FieldsAre(0, 6, -0.5F), FieldsAre(0, 7, -1.0F)));
  EXPECT_THAT(search.BestHypotheses(), ElementsAre(FieldsAre(ElementsAre(kStop), -0.25F, true)));
  EXPECT_FALSE(search.is_done());
}

TEST(BeamSearchTest, StopTokenBehindTheFirstBeamsIsForgotten) {
  BeamSearchParams params = TwoBeams();
  params.stop_token_ids = {kStop, 50};
  BeamSearch search(params);

  const BeamStep step = StepWith(search, {{{kStop, -0.25F}, {6, -0.5F}, {50, -0.75F}, {7, -1.0F}}});

  EXPECT_THAT(step.beams, ElementsAre(FieldsAre(0, 6, -0.5F), FieldsAre(0, 7, -1.0F)));
  EXPECT_EQ(search.num_hypotheses(), 1);
}

TEST(BeamSearchTest, HypothesisHasTheTokensOfItsBeamAndItsStopToken) {
  BeamSearch search(TwoBeams());
  StepWith(search, {{{1, -1.0F}, {2, -1.5F}}});
  StepWith(search, {{{3, -2.0F}, {4, -8.0F}}, {{5, -0.5F}, {6, -1.0F}}});  // {2, 5}, {2, 6}
  StepWith(search, {{{7, -4.0F}}, {{kStop, -0.5F}, {8, -2.0F}}});

  EXPECT_THAT(search.BestHypotheses(),
              ElementsAre(FieldsAre(ElementsAre(2, 6, kStop), FloatEq(-3.0F / 3.0F), true)));
}

TEST(BeamSearchTest, LengthPenaltyIsThePowerOfTheLengthThatDividesTheSum) {
  const auto score_with = [](double length_penalty) {
    BeamSearchParams params = TwoBeams();
    params.length_penalty = length_penalty;
    BeamSearch search(params);
    StepWith(search, {{{1, -1.0F}, {2, -6.0F}}});
    StepWith(search, {{{kStop, -1.5F}, {3, -2.0F}}, {{4, -1.0F}}});
    return search.BestHypotheses().at(0).score;
  };

  EXPECT_FLOAT_EQ(score_with(0.0), -2.5F);
  EXPECT_FLOAT_EQ(score_with(1.0), -2.5F / 2.0F);
  EXPECT_FLOAT_EQ(score_with(0.5), -2.5F / std::sqrt(2.0F));
  EXPECT_FLOAT_EQ(score_with(-1.0), -2.5F * 2.0F);
}

TEST(BeamSearchTest, PositivePenaltyFavoursLongHypothesesAndNegativeOnesShort) {
  const auto longest_first = [](double length_penalty) {
    BeamSearchParams params = TwoBeams();
    params.length_penalty = length_penalty;
    params.max_tokens = 3;
    BeamSearch search(params);
    StepWith(search, {{{1, -0.5F}, {kStop, -1.0F}, {2, -6.0F}}});
    StepWith(search, {{{3, -0.5F}, {4, -6.0F}}, {{5, -6.0F}, {6, -6.5F}}});
    StepWith(search, {{{kStop, -0.5F}, {7, -6.0F}}, {{8, -7.0F}}});
    return search.BestHypotheses().at(0).token_ids.size();
  };

  EXPECT_EQ(longest_first(1.0), 3U);  // -1.5 / 3 is better than -1
  EXPECT_EQ(longest_first(0.0), 1U);  // -1.5 is worse
  EXPECT_EQ(longest_first(-1.0), 1U);
}

TEST(BeamSearchTest, StoppingEarlyEndsTheSearchOnceThereAreEnoughHypotheses) {
  BeamSearchParams params = TwoBeams();
  params.early_stopping = EarlyStopping::kTrue;
  BeamSearch search(params);
  StepWith(search, {{{kStop, -3.0F}, {1, -3.5F}, {2, -4.0F}}});
  ASSERT_FALSE(search.is_done());

  // The live beams are far better than the hypotheses that have ended.
  const BeamStep step = StepWith(search, {{{3, -0.1F}, {kStop, -0.2F}}, {{4, -0.1F}}});

  EXPECT_TRUE(search.is_done());
  EXPECT_THAT(step.beams, IsEmpty());
  EXPECT_THAT(step.dropped, ElementsAre(0, 1));
  EXPECT_EQ(search.num_hypotheses(), 2);
}

TEST(BeamSearchTest, WithoutEarlyStoppingTheSearchGoesOnWhileALiveBeamIsBetter) {
  // The worst hypothesis has a score of -2 / 1.
  EXPECT_FALSE(TwoEnded(TwoBeams(), -2.9F).is_done());
  EXPECT_TRUE(TwoEnded(TwoBeams(), -3.1F).is_done());
}

TEST(BeamSearchTest, ALiveBeamThatIsOnlyEqualEndsTheSearch) {
  EXPECT_TRUE(TwoEnded(TwoBeams(), -3.0F).is_done());
}

TEST(BeamSearchTest, NeverStoppingEarlyGivesLiveBeamsTheFullLengthIfLengthIsFavoured) {
  BeamSearchParams params = TwoBeams();
  params.early_stopping = EarlyStopping::kNever;

  // The worst hypothesis has a score of -2 / 1, and 8 tokens are allowed.
  EXPECT_FALSE(TwoEnded(params, -3.1F).is_done());
  EXPECT_FALSE(TwoEnded(params, -14.9F).is_done());
  EXPECT_TRUE(TwoEnded(params, -15.1F).is_done());
}

TEST(BeamSearchTest, NeverStoppingEarlyGivesLiveBeamsTheirLengthIfItIsNotFavoured) {
  BeamSearchParams params = TwoBeams();
  params.early_stopping = EarlyStopping::kNever;

  // The worst hypothesis has a score of -2.5, or of -2.5 * 2. A live beam can only become worse.
  for (const double length_penalty : {0.0, -1.0}) {
    params.length_penalty = length_penalty;
    EXPECT_FALSE(TwoEnded(params, -1.4F).is_done()) << length_penalty;
    EXPECT_TRUE(TwoEnded(params, -1.6F).is_done()) << length_penalty;
  }
}

TEST(BeamSearchTest, ALaterHypothesisReplacesAWorseOne) {
  BeamSearch search = TwoEnded(TwoBeams(), -0.5F);

  StepWith(search, {{{kStop, -0.5F}, {5, -0.75F}}, {{6, -1.0F}}});

  EXPECT_THAT(search.BestHypotheses(),
              ElementsAre(FieldsAre(ElementsAre(1, 3, kStop), FloatEq(-2.0F / 3.0F), true),
                          FieldsAre(ElementsAre(1, kStop), FloatEq(-2.5F / 2.0F), true)));
}

TEST(BeamSearchTest, OfEqualHypothesesTheOlderGoesFirst) {
  BeamSearchParams params = TwoBeams();
  params.length_penalty = 0.0;
  BeamSearch search(params);
  StepWith(search, {{{1, -1.0F}, {kStop, -2.0F}, {2, -2.5F}}});

  StepWith(search, {{{kStop, -1.0F}, {3, -1.25F}}, {{4, -3.0F}}});

  EXPECT_THAT(search.BestHypotheses(),
              ElementsAre(FieldsAre(ElementsAre(kStop), -2.0F, true),
                          FieldsAre(ElementsAre(1, kStop), -2.0F, true)));
}

TEST(BeamSearchTest, AtMaxTokensTheBestExtensionsEndWhetherTheyStopOrNot) {
  BeamSearchParams params = TwoBeams();
  params.max_tokens = 2;
  params.early_stopping = EarlyStopping::kTrue;
  BeamSearch search(params);
  StepWith(search, {{{1, -1.0F}, {2, -2.0F}}});

  const BeamStep step = StepWith(search, {{{3, -1.0F}, {4, -5.0F}}, {{kStop, -1.0F}, {5, -1.5F}}});

  EXPECT_TRUE(search.is_done());
  EXPECT_THAT(step.beams, IsEmpty());
  EXPECT_THAT(step.dropped, ElementsAre(0, 1));
  EXPECT_THAT(search.BestHypotheses(),
              ElementsAre(FieldsAre(ElementsAre(1, 3), FloatEq(-1.0F), false),
                          FieldsAre(ElementsAre(2, kStop), FloatEq(-1.5F), true)));
}

TEST(BeamSearchTest, AtMaxTokensAnUnfinishedBeamCanBeatAHypothesis) {
  BeamSearchParams params = TwoBeams();
  params.max_tokens = 2;
  BeamSearch search(params);
  StepWith(search, {{{1, -0.5F}, {kStop, -3.0F}, {2, -4.0F}}});

  StepWith(search, {{{3, -0.5F}, {4, -1.0F}}, {{5, -1.0F}}});

  EXPECT_THAT(search.BestHypotheses(),
              ElementsAre(FieldsAre(ElementsAre(1, 3), FloatEq(-0.5F), false),
                          FieldsAre(ElementsAre(1, 4), FloatEq(-0.75F), false)));
}

TEST(BeamSearchTest, BeforeMinTokensAStopTokenIsNoExtension) {
  BeamSearchParams params = TwoBeams();
  params.min_tokens = 1;
  BeamSearch search(params);

  const BeamStep first = StepWith(search, {{{kStop, -0.1F}, {1, -1.0F}, {2, -2.0F}}});
  EXPECT_THAT(first.beams, ElementsAre(FieldsAre(0, 1, -1.0F), FieldsAre(0, 2, -2.0F)));
  EXPECT_EQ(search.num_hypotheses(), 0);

  StepWith(search, {{{kStop, -0.1F}, {3, -1.0F}}, {{4, -1.0F}}});
  EXPECT_EQ(search.num_hypotheses(), 1);
}

TEST(BeamSearchTest, AStopTokenBeforeMinTokensTakesNoRank) {
  BeamSearchParams params = TwoBeams();
  params.max_tokens = 1;
  params.min_tokens = 1;
  BeamSearch search(params);

  StepWith(search, {{{kStop, -0.1F}, {1, -1.0F}, {2, -2.0F}}});

  EXPECT_THAT(search.BestHypotheses(),
              ElementsAre(FieldsAre(ElementsAre(1), -1.0F, false),
                          FieldsAre(ElementsAre(2), -2.0F, false)));
}

TEST(BeamSearchTest, OnlyTheHypothesesAskedForAreReturned) {
  BeamSearchParams params = TwoBeams();
  params.num_hypotheses = 1;
  BeamSearch search = TwoEnded(params, -0.5F);

  EXPECT_EQ(search.num_hypotheses(), 2);
  EXPECT_THAT(search.BestHypotheses(),
              ElementsAre(FieldsAre(ElementsAre(1, kStop), FloatEq(-1.25F), true)));
}

TEST(BeamSearchTest, FewerCandidatesThanBeamsMakeFewerBeams) {
  BeamSearch search({.num_beams = 4, .max_tokens = 8});

  const BeamStep first = StepWith(search, {{{1, -1.0F}, {2, -2.0F}}});
  const BeamStep second = StepWith(search, {{{3, -1.0F}}, {{4, -1.0F}, {5, -2.0F}}});

  EXPECT_EQ(first.beams.size(), 2U);
  EXPECT_THAT(second.beams,
              ElementsAre(FieldsAre(0, 3, -2.0F), FieldsAre(1, 4, -3.0F), FieldsAre(1, 5, -4.0F)));
  EXPECT_FALSE(search.is_done());
}

TEST(BeamSearchTest, WithoutCandidatesTheSearchIsOverWithWhatItHas) {
  BeamSearch search(TwoBeams());
  StepWith(search, {{{kStop, -0.5F}, {1, -1.0F}}});

  const BeamStep step = StepWith(search, {{}});

  EXPECT_TRUE(search.is_done());
  EXPECT_THAT(step.dropped, ElementsAre(0));
  EXPECT_THAT(search.BestHypotheses(), ElementsAre(FieldsAre(ElementsAre(kStop), -0.5F, true)));
}

TEST(BeamSearchTest, CandidatesWithoutAFiniteLogprobAreNotTaken) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  BeamSearch search(TwoBeams());

  const BeamStep step =
      StepWith(search, {{{1, kNan}, {2, kInfinity}, {3, -1.0F}, {4, -kInfinity}, {5, -2.0F}}});

  EXPECT_THAT(step.beams, ElementsAre(FieldsAre(0, 3, -1.0F), FieldsAre(0, 5, -2.0F)));
}

TEST(BeamSearchTest, OneBeamGoesOnPastAStopTokenWhileItCanDoBetter) {
  BeamSearch search({.num_beams = 1,
                     .early_stopping = EarlyStopping::kNever,
                     .max_tokens = 8,
                     .stop_token_ids = {kStop}});

  const BeamStep step = StepWith(search, {{{kStop, -2.0F}, {1, -2.5F}}});
  ASSERT_THAT(step.beams, ElementsAre(FieldsAre(0, 1, -2.5F)));
  StepWith(search, {{{kStop, -0.5F}, {2, -9.5F}}});

  EXPECT_TRUE(search.is_done());
  EXPECT_THAT(search.BestHypotheses(), ElementsAre(FieldsAre(ElementsAre(1, kStop), -1.5F, true)));
}

TEST(BeamSearchTest, StepsReuseTheirBuffers) {
  BeamSearch search({.num_beams = 2, .max_tokens = 200});
  StepWith(search, {{{1, -1.0F}, {2, -1.0F}}});
  const std::vector<BeamCandidate> of_beam = {{1, -1.0F}, {2, -1.5F}};
  const std::vector<std::span<const BeamCandidate>> candidates(2, of_beam);
  std::set<const void*> buffers;

  while (search.num_tokens() < 199) {
    const BeamStep& step = search.Step(candidates);
    buffers.insert({step.beams.data(), step.dropped.data()});
  }

  EXPECT_EQ(buffers.size(), 3U);  // the beams of a step and of the one before take turns
}

TEST(BeamSearchTest, ScoresStayNumbersAtTheEndsOfTheRanges) {
  for (const double length_penalty : {-5.0, 5.0}) {
    for (const EarlyStopping early_stopping : {EarlyStopping::kFalse, EarlyStopping::kNever}) {
      BeamSearch search({.num_beams = 1,
                         .length_penalty = length_penalty,
                         .early_stopping = early_stopping,
                         .max_tokens = std::numeric_limits<int32_t>::max(),
                         .stop_token_ids = {kStop}});

      StepWith(search, {{{1, 0.0F}, {2, -1.0F}}});
      StepWith(search, {{{kStop, 0.0F}, {2, -1e30F}}});

      EXPECT_FALSE(std::isnan(search.BestHypotheses().at(0).score));
    }
  }
}

TEST(BeamSearchTest, CandidatesOfAnotherNumberOfBeamsAreAProgrammersError) {
  BeamSearch search(TwoBeams());

  EXPECT_DEATH(StepWith(search, {{{1, -1.0F}}, {{2, -1.0F}}}), "candidates.size");
}

TEST(BeamSearchTest, AStepAfterTheEndIsAProgrammersError) {
  BeamSearchParams params = TwoBeams();
  params.max_tokens = 1;
  BeamSearch search(params);
  StepWith(search, {{{1, -1.0F}, {2, -1.0F}}});

  EXPECT_DEATH(StepWith(search, {}), "is_done");
}

void ExpectRefused(const BeamSearchParams& params, const std::string& reason) {
  const absl::Status status = CheckBeamSearchParams(params);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << reason;
  EXPECT_THAT(std::string(status.message()), HasSubstr(reason));
}

TEST(BeamSearchParamsTest, ParametersOutOfRangeAreRefused) {
  ExpectRefused({.num_beams = 0}, "num_beams is 0");
  ExpectRefused({.num_beams = 11}, "num_beams is 11");
  ExpectRefused({.num_beams = 2, .num_hypotheses = 0}, "cannot return 0");
  ExpectRefused({.num_beams = 2, .num_hypotheses = 3}, "cannot return 3");
  ExpectRefused({.length_penalty = 5.1}, "length_penalty is 5.1");
  ExpectRefused({.length_penalty = -5.1}, "length_penalty is -5.1");
  ExpectRefused({.length_penalty = std::numeric_limits<double>::quiet_NaN()},
                "length_penalty is nan");
  ExpectRefused({.max_tokens = 0}, "max_tokens is 0");
  ExpectRefused({.max_tokens = 4, .min_tokens = 5}, "min_tokens is 5");
  ExpectRefused({.min_tokens = -1}, "min_tokens is -1");
  ExpectRefused({.num_beams = 10, .stop_token_ids = std::vector<TokenId>(11, 1)},
                "at most 10 stop tokens");
}

TEST(BeamSearchParamsTest, TheEndsOfTheRangesAreAllowed) {
  EXPECT_TRUE(CheckBeamSearchParams({}).ok());
  EXPECT_TRUE(CheckBeamSearchParams({.num_beams = 10,
                                     .num_hypotheses = 10,
                                     .length_penalty = -5.0,
                                     .max_tokens = 1,
                                     .min_tokens = 1,
                                     .stop_token_ids = std::vector<TokenId>(10, 1)})
                  .ok());
  EXPECT_TRUE(CheckBeamSearchParams({.length_penalty = 5.0}).ok());
}

}  // namespace
}  // namespace quire
