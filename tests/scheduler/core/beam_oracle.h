// BeamOracle is beam search over the tokens of a FakeWorker, made from plain histories: no blocks,
// no sequences, no steps. The core must give the same hypotheses for a request of beam search.
//
// Thread safety: a value type.
#ifndef QUIRE_TESTS_SCHEDULER_CORE_BEAM_ORACLE_H_
#define QUIRE_TESTS_SCHEDULER_CORE_BEAM_ORACLE_H_

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "common/step/step_limits.h"
#include "scheduler/core/beam_search.h"
#include "scheduler/core/request.h"

namespace quire {

class BeamOracle {
 public:
  // REQUIRES: request.beam_search.
  BeamOracle(const Request& request, const StepLimits& limits);

  // The hypotheses, best first.
  const std::vector<BeamHypothesis>& hypotheses() const { return hypotheses_; }

  // Whether a live beam ever had exactly these tokens, of prompt and output together.
  bool HadBeam(std::span<const TokenId> token_ids) const {
    return beams_.contains({token_ids.begin(), token_ids.end()});
  }

 private:
  std::vector<BeamHypothesis> hypotheses_;
  std::set<std::vector<TokenId>> beams_;
};

}  // namespace quire

#endif  // QUIRE_TESTS_SCHEDULER_CORE_BEAM_ORACLE_H_
