// LengthModel draws prompt and output lengths of synthetic requests: two independent log-normals,
// rounded to whole tokens and truncated together by the rules of vLLM's benchmark scripts. The
// medians are computed so that the means after truncation equal the given means. Only the two
// variations are free parameters.
//
// Thread safety: const methods may be called concurrently; the random source is the caller's.
// Source:        means: Kwon et al. 2023, section 6.1 and Fig 11. Rules: the dataset sampling of
//                vLLM's benchmarks.
#ifndef QUIRE_SCHEDULER_SIM_LENGTH_MODEL_H_
#define QUIRE_SCHEDULER_SIM_LENGTH_MODEL_H_

#include <cstdint>
#include <vector>

#include "scheduler/sim/sim_random.h"

namespace quire {

// Bounds of the truncation. Units: tokens.
struct LengthRules {
  int32_t min_prompt = 4;
  int32_t min_output = 4;
  int32_t max_prompt = 1024;
  int32_t max_total = 2048;
  int32_t max_output = 1 << 30;
};

struct LengthShape {
  double mean_prompt = 0;  // tokens, after truncation
  double mean_output = 0;
  // Coefficient of variation of the log-normal before truncation: sigma^2 = ln(1 + variation^2).
  double prompt_variation = 1;
  double output_variation = 1;
  LengthRules rules;
};

// Shapes like the lengths in the PagedAttention paper: its datasets ShareGPT and Alpaca, and the
// sentences of its translation task. The newest file in results/ says why these shapes were chosen.
LengthShape ShareGptLike();
LengthShape AlpacaLike();
LengthShape TranslationLike();

// Shapes like those of the two traces of arXiv papers in microsoft/vattention (artifact of ASPLOS
// 2025). Each shape has its trace's mean, shortest and longest lengths.
LengthShape ArxivOfflineLike();
LengthShape ArxivOnlineLike();
inline constexpr int32_t kArxivOfflineRequests = 427;

struct Lengths {
  int32_t prompt_tokens = 0;
  int32_t output_tokens = 0;
};

class LengthModel {
 public:
  // REQUIRES: 1 <= rules.min_prompt <= mean_prompt, 1 <= rules.min_output <= mean_output, and
  // lengths within shape.rules can have these means.
  explicit LengthModel(const LengthShape& shape);

  Lengths Draw(SimRandom& random) const;

  // Means of the truncated distribution, computed by summation.
  double mean_prompt() const { return mean_prompt_; }
  double mean_output() const { return mean_output_; }

 private:
  // Computes the running sums of prompt_ and output_, and the mean lengths under rules_.
  void ComputeMeans();

  LengthRules rules_;
  std::vector<double> prompt_;         // probability by prompt length, before max_total applies
  std::vector<double> output_;         // probability by output length, before max_total applies
  std::vector<double> prompt_so_far_;  // running sums of prompt_
  std::vector<double> output_so_far_;
  double mean_prompt_ = 0;
  double mean_output_ = 0;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_LENGTH_MODEL_H_
