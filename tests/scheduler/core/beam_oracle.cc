#include "tests/scheduler/core/beam_oracle.h"

#include "scheduler/core/beam_group.h"
#include "tests/support/fake_worker.h"

namespace quire {

BeamOracle::BeamOracle(const Request& request, const StepLimits& limits) {
  BeamSearch search(SearchParamsOf(request));
  std::vector<std::vector<TokenId>> beams = {request.prompt_token_ids};
  beams_.insert(beams.front());
  while (!search.is_done()) {
    std::vector<std::vector<BeamCandidate>> candidates(beams.size());
    for (size_t i = 0; i < beams.size(); ++i) {
      for (const TokenLogprob& top : ExpectedCandidates(
               beams[i], request.sampling.num_logprobs, limits.vocab_size, limits.sliding_window)) {
        candidates[i].push_back({.token_id = top.token_id, .logprob = top.logprob});
      }
    }
    const std::vector<std::span<const BeamCandidate>> spans(candidates.begin(), candidates.end());
    const BeamStep& step = search.Step(spans);
    std::vector<std::vector<TokenId>> next;
    for (const LiveBeam& beam : step.beams) {
      next.push_back(beams[static_cast<size_t>(beam.parent)]);
      next.back().push_back(beam.token_id);
      beams_.insert(next.back());
    }
    beams = std::move(next);
  }
  hypotheses_ = search.BestHypotheses();
}

}  // namespace quire
