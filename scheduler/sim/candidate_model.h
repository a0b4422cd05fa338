// CandidateModel draws the candidates of a beam search: the likeliest tokens of a random
// distribution. The beams compete by these candidates. The outcome decides which beams fork from
// which, and so which blocks the beams share.
//
// The distribution is stick-breaking, GEM(alpha): the first token takes a Beta(1, alpha) part of
// the probability, the next token a Beta(1, alpha) part of the rest, and so on. Its expected
// entropy is digamma(alpha + 1) + 0.5772 nats. kAlpha makes the entropy ln 10.13 = 2.32 nats, where
// 10.13 is the perplexity of OPT-13B on WikiText-2.
//
// Thread safety: not thread-safe.
// Source:        Zhang et al. 2022 (OPT), as measured by Frantar et al. 2022 (GPTQ), table 3.
#ifndef QUIRE_SCHEDULER_SIM_CANDIDATE_MODEL_H_
#define QUIRE_SCHEDULER_SIM_CANDIDATE_MODEL_H_

#include <cstdint>
#include <vector>

#include "common/step/step_result.h"
#include "scheduler/sim/sim_random.h"

namespace quire {

class CandidateModel {
 public:
  static constexpr double kAlpha = 5.18;

  explicit CandidateModel(uint64_t seed) : random_(seed) {}

  // Returns count distinct tokens, likeliest first. REQUIRES: 0 <= count <= 64.
  std::vector<TokenLogprob> Draw(int32_t count);

 private:
  SimRandom random_;
  std::vector<double> parts_;  // largest probabilities so far, descending; reused by each Draw
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_CANDIDATE_MODEL_H_
