// BeamSearch beside the definition of the search, written without any economy: every extension of
// every beam by every token is sorted, sequences are kept whole, and the three conditions of going
// on are computed as transformers lists them. Logprobs are multiples of 1/4, so that equal scores
// are frequent, and some tokens are impossible.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "scheduler/core/beam_search.h"
#include "tests/support/random.h"

namespace quire {
namespace {

constexpr int kNumSearches = 5000;

struct PlainBeam {
  std::vector<TokenId> token_ids;
  float score = 0.0F;
  bool has_stopped = false;
};

// A language model whose next token depends on all before it.
class HashModel {
 public:
  HashModel(uint64_t seed, int32_t vocab_size) : seed_(seed), vocab_size_(vocab_size) {}

  std::vector<BeamCandidate> Candidates(const std::vector<TokenId>& tokens) const {
    uint64_t state = seed_;
    for (TokenId token : tokens) {
      state = Random(state + static_cast<uint64_t>(token)).Next();
    }
    Random random(state);
    std::vector<BeamCandidate> candidates;
    for (TokenId token = 0; token < vocab_size_; ++token) {
      const float logprob = -0.25F * static_cast<float>(random.Between(1, 40));
      candidates.push_back(
          {token, random.OneIn(10) ? -std::numeric_limits<float>::infinity() : logprob});
    }
    return candidates;
  }

 private:
  uint64_t seed_;
  int32_t vocab_size_;
};

template <typename Scored>
void SortByScore(std::vector<Scored>& items, float Scored::*score) {
  std::stable_sort(items.begin(), items.end(), [score](const Scored& a, const Scored& b) {
    return a.*score > b.*score;
  });
}

float Normalized(float score, size_t length, const BeamSearchParams& params) {
  return static_cast<float>(double{score} /
                            std::pow(static_cast<double>(length), params.length_penalty));
}

// All extensions of the beams, best first.
std::vector<PlainBeam> Extensions(const std::vector<PlainBeam>& beams,
                                  const BeamSearchParams& params,
                                  const HashModel& model) {
  std::vector<PlainBeam> extensions;
  for (const PlainBeam& beam : beams) {
    for (const BeamCandidate& candidate : model.Candidates(beam.token_ids)) {
      PlainBeam extension = beam;
      extension.token_ids.push_back(candidate.token_id);
      extension.score += candidate.logprob;
      extension.has_stopped = std::ranges::count(params.stop_token_ids, candidate.token_id) > 0;
      const bool is_too_short = static_cast<int32_t>(beam.token_ids.size()) < params.min_tokens;
      if (std::isfinite(extension.score) && !(extension.has_stopped && is_too_short)) {
        extensions.push_back(extension);
      }
    }
  }
  SortByScore(extensions, &PlainBeam::score);
  return extensions;
}

std::vector<PlainBeam> PlainSearch(const BeamSearchParams& params, const HashModel& model) {
  const auto num_beams = static_cast<size_t>(params.num_beams);
  std::vector<PlainBeam> running(1);
  std::vector<PlainBeam> finished;
  for (size_t length = 1; !running.empty(); ++length) {
    const bool is_last = length == static_cast<size_t>(params.max_tokens);
    const std::vector<PlainBeam> extensions = Extensions(running, params, model);
    running.clear();
    for (size_t rank = 0; rank < extensions.size(); ++rank) {
      const bool has_ended = extensions[rank].has_stopped || is_last;
      if (!has_ended && running.size() < num_beams) {
        running.push_back(extensions[rank]);
      } else if (has_ended && rank < num_beams) {
        finished.push_back(extensions[rank]);
        finished.back().score = Normalized(extensions[rank].score, length, params);
      }
    }
    SortByScore(finished, &PlainBeam::score);
    finished.resize(std::min(finished.size(), num_beams));
    if (running.empty() || finished.size() < num_beams) {
      continue;
    }
    const bool takes_full_length =
        params.early_stopping == EarlyStopping::kNever && params.length_penalty > 0.0;
    const size_t hoped_length = takes_full_length ? static_cast<size_t>(params.max_tokens) : length;
    const bool is_improvement_possible =
        Normalized(running[0].score, hoped_length, params) > finished.back().score;
    if (!is_improvement_possible || params.early_stopping == EarlyStopping::kTrue) {
      break;
    }
  }
  finished.resize(std::min(finished.size(), static_cast<size_t>(params.num_hypotheses)));
  return finished;
}

// Drives BeamSearch with no more candidates than it asks for.
std::vector<BeamHypothesis> Search(const BeamSearchParams& params, const HashModel& model) {
  BeamSearch search(params);
  std::vector<std::vector<TokenId>> sequences(1);
  while (!search.is_done()) {
    std::vector<std::vector<BeamCandidate>> candidates;
    for (const std::vector<TokenId>& sequence : sequences) {
      std::vector<BeamCandidate>& of_beam = candidates.emplace_back(model.Candidates(sequence));
      SortByScore(of_beam, &BeamCandidate::logprob);
      of_beam.resize(std::min(of_beam.size(), static_cast<size_t>(params.num_candidates())));
    }
    const std::vector<std::span<const BeamCandidate>> views(candidates.begin(), candidates.end());
    std::vector<std::vector<TokenId>> next;
    for (const LiveBeam& beam : search.Step(views).beams) {
      next.push_back(sequences.at(static_cast<size_t>(beam.parent)));
      next.back().push_back(beam.token_id);
    }
    sequences = std::move(next);
  }
  return search.BestHypotheses();
}

BeamSearchParams DrawParams(Random& random, int32_t vocab_size) {
  constexpr double kPenalties[] = {-2.0, -1.0, 0.0, 0.5, 1.0, 2.0};
  BeamSearchParams params;
  params.num_beams = random.Between(1, BeamSearchParams::kMaxBeams);
  params.num_hypotheses = random.Between(1, params.num_beams);
  params.length_penalty = kPenalties[random.Below(6)];
  params.early_stopping = static_cast<EarlyStopping>(random.Below(3));
  params.max_tokens = random.Between(1, 10);
  params.min_tokens = random.OneIn(3) ? random.Between(0, params.max_tokens) : 0;
  const int32_t num_stops = random.Between(0, BeamSearchParams::kMaxCandidates - params.num_beams);
  for (int32_t i = 0; i < num_stops; ++i) {
    params.stop_token_ids.push_back(random.Below(vocab_size));
  }
  return params;
}

TEST(BeamSearchRandomTest, FindsWhatTheDefinitionFinds) {
  int64_t num_early = 0;
  for (uint64_t seed = 1; seed <= kNumSearches; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const int32_t vocab_size = random.OneIn(4) ? random.Between(1, 8) : 40;
    const BeamSearchParams params = DrawParams(random, vocab_size);
    const HashModel model(random.Next(), vocab_size);

    const std::vector<BeamHypothesis> found = Search(params, model);
    const std::vector<PlainBeam> expected = PlainSearch(params, model);

    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(found[i].token_ids, expected[i].token_ids) << "hypothesis " << i;
      ASSERT_EQ(found[i].score, expected[i].score) << "hypothesis " << i;
      ASSERT_EQ(found[i].has_stopped, expected[i].has_stopped) << "hypothesis " << i;
    }
    num_early += std::ranges::any_of(found, [&params](const BeamHypothesis& hypothesis) {
      return static_cast<int32_t>(hypothesis.token_ids.size()) < params.max_tokens;
    });
  }
  // The draw is worth something only if many searches meet stop tokens.
  EXPECT_GT(num_early, kNumSearches / 4);
}

}  // namespace
}  // namespace quire
