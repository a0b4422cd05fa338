#include "scheduler/core/beam_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/check.h"

namespace quire {
namespace {

using Candidates = std::span<const BeamCandidate>;

// Yields the extensions of all live beams, best first, by merging the beams' sorted candidates. An
// extension is represented by the LiveBeam that it may become.
class ExtensionMerge {
 public:
  ExtensionMerge(std::span<const LiveBeam> beams, std::span<const Candidates> candidates)
      : beams_(beams) {
    std::copy(candidates.begin(), candidates.end(), left_.begin());
  }

  // Takes the best extension that is left. Returns nullopt if none is left.
  std::optional<LiveBeam> TakeBest() {
    std::optional<LiveBeam> best;
    for (size_t beam = 0; beam < beams_.size(); ++beam) {
      SkipInfinite(left_[beam]);
      if (left_[beam].empty()) {
        continue;
      }
      const BeamCandidate& candidate = left_[beam].front();
      const float score = beams_[beam].score + candidate.logprob;
      if (!best || score > best->score) {
        best = {
            .parent = static_cast<int32_t>(beam), .token_id = candidate.token_id, .score = score};
      }
    }
    if (best) {
      Candidates& left = left_[static_cast<size_t>(best->parent)];
      left = left.subspan(1);
    }
    return best;
  }

 private:
  // A forbidden token has the logprob -infinity.
  static void SkipInfinite(Candidates& left) {
    while (!left.empty() && !std::isfinite(left.front().logprob)) {
      left = left.subspan(1);
    }
  }

  std::span<const LiveBeam> beams_;
  // For each beam, the candidates that are not taken yet, best first.
  std::array<Candidates, BeamSearchParams::kMaxBeams> left_;
};

}  // namespace

absl::Status CheckBeamSearchParams(const BeamSearchParams& params) {
  using Params = BeamSearchParams;
  if (params.num_beams < 1 || params.num_beams > Params::kMaxBeams) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_beams is ", params.num_beams, "; it must be between 1 and ", Params::kMaxBeams));
  }
  if (params.num_hypotheses < 1 || params.num_hypotheses > params.num_beams) {
    return absl::InvalidArgumentError(absl::StrCat("a search with ",
                                                   params.num_beams,
                                                   " beams cannot return ",
                                                   params.num_hypotheses,
                                                   " hypotheses"));
  }
  // The comparison is negated, so that NaN is refused.
  if (!(std::abs(params.length_penalty) <= Params::kMaxLengthPenalty)) {
    return absl::InvalidArgumentError(absl::StrCat("length_penalty is ",
                                                   params.length_penalty,
                                                   "; it must be between ",
                                                   -Params::kMaxLengthPenalty,
                                                   " and ",
                                                   Params::kMaxLengthPenalty));
  }
  if (params.max_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_tokens is ", params.max_tokens, "; it must be at least 1"));
  }
  if (params.min_tokens < 0 || params.min_tokens > params.max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("min_tokens is ",
                                                   params.min_tokens,
                                                   "; it must be between 0 and max_tokens, ",
                                                   params.max_tokens));
  }
  const auto max_stop_tokens = static_cast<size_t>(Params::kMaxCandidates - params.num_beams);
  if (params.stop_token_ids.size() > max_stop_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("a search with ",
                                                   params.num_beams,
                                                   " beams may have at most ",
                                                   max_stop_tokens,
                                                   " stop tokens, not ",
                                                   params.stop_token_ids.size()));
  }
  return absl::OkStatus();
}

BeamSearch::BeamSearch(BeamSearchParams params) : params_(std::move(params)) {
  QUIRE_CHECK(CheckBeamSearchParams(params_).ok());
  std::sort(params_.stop_token_ids.begin(), params_.stop_token_ids.end());
  const auto num_beams = static_cast<size_t>(params_.num_beams);
  step_.beams.reserve(num_beams);
  step_.dropped.reserve(num_beams);
  nodes_.reserve(num_beams);
  next_beams_.reserve(num_beams);
  next_nodes_.reserve(num_beams);
  hypotheses_.reserve(num_beams + 1);
  step_.beams.push_back({});
  nodes_.push_back(kNoNode);
}

const BeamStep& BeamSearch::Step(std::span<const std::span<const BeamCandidate>> candidates) {
  QUIRE_CHECK(!is_done_);
  QUIRE_CHECK_EQ(candidates.size(), step_.beams.size());
  ++num_tokens_;
  RankExtensions(candidates);
  if (!CanImprove()) {
    next_beams_.clear();
    next_nodes_.clear();
  }
  ListDropped();
  std::swap(step_.beams, next_beams_);
  std::swap(nodes_, next_nodes_);
  is_done_ = step_.beams.empty();
  return step_;
}

void BeamSearch::RankExtensions(std::span<const std::span<const BeamCandidate>> candidates) {
  next_beams_.clear();
  next_nodes_.clear();
  const bool is_last_step = num_tokens_ == params_.max_tokens;
  ExtensionMerge extensions(step_.beams, candidates);
  const auto num_going_on = [this] { return static_cast<int32_t>(next_beams_.size()); };
  int32_t rank = 0;
  // Before the last step, the loop can stop when num_beams beams go on. At least num_beams
  // extensions are ranked by then, so no later extension can become a hypothesis.
  while ((is_last_step ? rank : num_going_on()) < params_.num_beams) {
    const std::optional<LiveBeam> extension = extensions.TakeBest();
    if (!extension) {
      return;
    }
    const bool is_stop = IsStopToken(extension->token_id);
    if (is_stop && num_tokens_ <= params_.min_tokens) {
      continue;
    }
    if (!is_stop && !is_last_step) {
      GoOn(*extension);
    } else if (rank < params_.num_beams) {
      End(*extension, is_stop);
    }
    ++rank;
  }
}

void BeamSearch::GoOn(const LiveBeam& extension) {
  const auto node = static_cast<int32_t>(history_.size());
  history_.push_back(
      {.previous = nodes_[static_cast<size_t>(extension.parent)], .token_id = extension.token_id});
  next_beams_.push_back(extension);
  next_nodes_.push_back(node);
}

void BeamSearch::End(const LiveBeam& extension, bool has_stopped) {
  const Ending ending = {.previous = nodes_[static_cast<size_t>(extension.parent)],
                         .last_token_id = extension.token_id,
                         .has_stopped = has_stopped,
                         .score = Normalized(extension.score, num_tokens_)};
  const auto place = std::upper_bound(
      hypotheses_.begin(), hypotheses_.end(), ending, [](const Ending& a, const Ending& b) {
        return a.score > b.score;
      });
  hypotheses_.insert(place, ending);
  if (num_hypotheses() > params_.num_beams) {
    hypotheses_.pop_back();
  }
}

bool BeamSearch::IsStopToken(TokenId token_id) const {
  return std::binary_search(params_.stop_token_ids.begin(), params_.stop_token_ids.end(), token_id);
}

// Computes in double, in which the power is neither 0 nor infinite for any valid length and
// penalty.
float BeamSearch::Normalized(float score, int32_t num_tokens) const {
  return static_cast<float>(double{score} / std::pow(num_tokens, params_.length_penalty));
}

bool BeamSearch::CanImprove() const {
  if (next_beams_.empty() || num_hypotheses() < params_.num_beams) {
    return true;
  }
  if (params_.early_stopping == EarlyStopping::kTrue) {
    return false;
  }
  const bool hopes_for_length =
      params_.early_stopping == EarlyStopping::kNever && params_.length_penalty > 0.0;
  const int32_t num_tokens = hopes_for_length ? params_.max_tokens : num_tokens_;
  return Normalized(next_beams_.front().score, num_tokens) > hypotheses_.back().score;
}

void BeamSearch::ListDropped() {
  step_.dropped.clear();
  for (size_t beam = 0; beam < step_.beams.size(); ++beam) {
    const auto parent = static_cast<int32_t>(beam);
    const bool goes_on =
        std::any_of(next_beams_.begin(), next_beams_.end(), [parent](const LiveBeam& next) {
          return next.parent == parent;
        });
    if (!goes_on) {
      step_.dropped.push_back(parent);
    }
  }
}

std::vector<BeamHypothesis> BeamSearch::BestHypotheses() const {
  std::vector<BeamHypothesis> best;
  for (const Ending& ending : hypotheses_) {
    if (static_cast<int32_t>(best.size()) == params_.num_hypotheses) {
      break;
    }
    BeamHypothesis& hypothesis = best.emplace_back();
    hypothesis.score = ending.score;
    hypothesis.has_stopped = ending.has_stopped;
    hypothesis.token_ids.push_back(ending.last_token_id);
    for (int32_t node = ending.previous; node != kNoNode;
         node = history_[static_cast<size_t>(node)].previous) {
      hypothesis.token_ids.push_back(history_[static_cast<size_t>(node)].token_id);
    }
    std::reverse(hypothesis.token_ids.begin(), hypothesis.token_ids.end());
  }
  return best;
}

}  // namespace quire
