// BeamSearch over a real model finds what Hugging Face transformers finds: the same tokens in the
// same order, and scores that differ by rounding only. The goldens are made by
// make_beam_goldens.py, which keeps clear of scores too close for two implementations to agree on.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/check.h"
#include "common/json/json.h"
#include "kernels/cpu/cpu_backend.h"
#include "scheduler/core/beam_search.h"
#include "tests/worker/model/model_runner.h"
#include "worker/model/model.h"

namespace quire {
namespace {

constexpr double kTolerance = 1e-3;
constexpr char kGoldenFile[] = "tests/scheduler/core/testdata/beam_golden.json";
constexpr char kModels[] = "tests/worker/model/testdata/";
// Enough for 24 steps of 10 beams of 44 tokens, if nine of them were copied at each step.
constexpr int64_t kNumBlocks = 1024;

struct BeamCase {
  std::vector<TokenId> prompt;
  BeamSearchParams params;
  std::vector<std::vector<TokenId>> sequences;
  std::vector<double> scores;
  std::string text;
};

EarlyStopping EarlyStoppingOf(const std::string& name) {
  QUIRE_CHECK(name == "false" || name == "true" || name == "never");
  return name == "false"  ? EarlyStopping::kFalse
         : name == "true" ? EarlyStopping::kTrue
                          : EarlyStopping::kNever;
}

std::vector<BeamCase> ReadCases(const std::string& model) {
  absl::StatusOr<Json> json = ParseJsonFile(kGoldenFile, int64_t{1} << 20);
  QUIRE_CHECK(json.ok());
  std::vector<BeamCase> cases;
  for (const Json& entry : (*json)["cases"]) {
    if (entry["model"].get<std::string>() != model) {
      continue;
    }
    BeamCase& golden = cases.emplace_back();
    golden.prompt = entry["prompt"].get<std::vector<TokenId>>();
    golden.params = {.num_beams = entry["num_beams"].get<int32_t>(),
                     .num_hypotheses = entry["n"].get<int32_t>(),
                     .length_penalty = entry["length_penalty"].get<double>(),
                     .early_stopping = EarlyStoppingOf(entry["early_stopping"].get<std::string>()),
                     .max_tokens = entry["max_tokens"].get<int32_t>(),
                     .min_tokens = entry["min_tokens"].get<int32_t>(),
                     .stop_token_ids = entry["stop_token_ids"].get<std::vector<TokenId>>()};
    golden.sequences = entry["sequences"].get<std::vector<std::vector<TokenId>>>();
    golden.scores = entry["scores"].get<std::vector<double>>();
    golden.text = entry.dump();
  }
  return cases;
}

std::vector<BeamCandidate> Likeliest(const std::vector<float>& logits, int32_t count) {
  const std::vector<double> logprobs = LogSoftmax(logits);
  std::vector<BeamCandidate> candidates;
  for (size_t token = 0; token < logprobs.size(); ++token) {
    candidates.push_back(
        {.token_id = static_cast<TokenId>(token), .logprob = static_cast<float>(logprobs[token])});
  }
  std::stable_sort(
      candidates.begin(), candidates.end(), [](const BeamCandidate& a, const BeamCandidate& b) {
        return a.logprob > b.logprob;
      });
  candidates.resize(std::min(candidates.size(), static_cast<size_t>(count)));
  return candidates;
}

// The sequences of the live beams in the cache of a model. The first beam that continues another
// takes its sequence over; the others compute a copy of it.
class ModelBeams {
 public:
  ModelBeams(Model& model, KernelBackend& backend, std::vector<TokenId> prompt)
      : runner_(model, backend, kNumBlocks) {
    slices_.push_back({.sequence = runner_.AddSequence(), .tokens = prompt});
    beams_.push_back({.sequence = slices_[0].sequence, .tokens = std::move(prompt)});
  }

  // Computes what Follow has added. One row per live beam.
  std::vector<std::vector<BeamCandidate>> Candidates(int32_t count) {
    std::vector<std::vector<BeamCandidate>> candidates;
    for (const std::vector<float>& logits : runner_.Run(slices_)) {
      candidates.push_back(Likeliest(logits, count));
    }
    return candidates;
  }

  void Follow(const BeamStep& step) {
    std::vector<Beam> next;
    std::vector<bool> is_taken(beams_.size(), false);
    slices_.clear();
    for (const LiveBeam& live : step.beams) {
      const auto parent = static_cast<size_t>(live.parent);
      Beam& beam = next.emplace_back(beams_[parent]);
      beam.tokens.push_back(live.token_id);
      if (is_taken[parent]) {
        beam.sequence = runner_.AddSequence();
        slices_.push_back({.sequence = beam.sequence, .tokens = beam.tokens});
      } else {
        slices_.push_back({.sequence = beam.sequence, .tokens = {live.token_id}});
      }
      is_taken[parent] = true;
    }
    for (int32_t dropped : step.dropped) {
      EXPECT_FALSE(is_taken[static_cast<size_t>(dropped)]);
      is_taken[static_cast<size_t>(dropped)] = true;
    }
    EXPECT_THAT(is_taken, testing::Each(true));
    beams_ = std::move(next);
  }

 private:
  struct Beam {
    int sequence = 0;
    std::vector<TokenId> tokens;  // prompt and output
  };

  ModelRunner runner_;
  std::vector<Beam> beams_;
  std::vector<ModelRunner::Slice> slices_;
};

class BeamParityTest : public testing::TestWithParam<std::string> {};

TEST_P(BeamParityTest, FindsTheSequencesAndScoresOfTransformers) {
  auto backend = *CreateCpuBackend({.num_threads = 1, .isa = ""});
  auto model = LoadModel(kModels + GetParam(), *backend, nullptr);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<BeamCase> cases = ReadCases(GetParam());
  ASSERT_GE(cases.size(), 40U);
  double largest_error = 0.0;

  for (const BeamCase& golden : cases) {
    SCOPED_TRACE(golden.text);
    BeamSearch search(golden.params);
    ModelBeams beams(**model, *backend, golden.prompt);
    while (!search.is_done()) {
      const auto candidates = beams.Candidates(golden.params.num_candidates());
      const std::vector<std::span<const BeamCandidate>> views(candidates.begin(), candidates.end());
      beams.Follow(search.Step(views));
    }
    const std::vector<BeamHypothesis> found = search.BestHypotheses();

    ASSERT_EQ(found.size(), golden.sequences.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].token_ids, golden.sequences[i]) << "hypothesis " << i;
      EXPECT_NEAR(found[i].score, golden.scores[i], kTolerance) << "hypothesis " << i;
      EXPECT_EQ(found[i].has_stopped,
                std::ranges::count(golden.params.stop_token_ids, golden.sequences[i].back()) > 0);
      largest_error = std::max(largest_error, std::abs(found[i].score - golden.scores[i]));
    }
  }
  std::printf("%zu searches, largest error of a score: %.2e\n", cases.size(), largest_error);
}

INSTANTIATE_TEST_SUITE_P(Families,
                         BeamParityTest,
                         testing::Values("llama", "mistral", "opt", "qwen2", "qwen3"),
                         [](const auto& family) { return family.param; });

}  // namespace
}  // namespace quire
