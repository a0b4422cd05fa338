// StepCost learns how long steps take by how many tokens they compute, from the steps that were
// answered: what one more token costs, and how many cost nothing. A step that decodes waits for
// weights to be read, not for products, so it has room for tokens of a prompt.
//
// Steps are kept apart by their tokens, four buckets to a power of two, each with moving averages
// of tokens and of time. Between two buckets that were seen, time is taken to be linear.
//
// Thread safety: not thread-safe; owned by PreemptionCost.
// Units:         microseconds.
// Cost:          ObserveStep O(1), the others O(buckets), of which there are 72.
// Source:        prompts in the spare compute of decode steps: Sarathi, Agrawal et al. 2023.
#ifndef QUIRE_SCHEDULER_CORE_STEP_COST_H_
#define QUIRE_SCHEDULER_CORE_STEP_COST_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace quire {

class StepCost {
 public:
  // A step of num_tokens took so long. REQUIRES: num_tokens >= 1.
  void ObserveStep(int64_t num_tokens, double micros);

  // What a step of num_tokens would take; 0 while nothing is known. Beyond the most tokens that
  // were seen, time is taken to be proportional to them.
  double StepMicros(int64_t num_tokens) const;

  // How many tokens a step of num_tokens can take on and be longer by a fiftieth at most. As far
  // as it was seen: 0 while nothing is known.
  int64_t SpareTokens(int64_t num_tokens) const;

 private:
  struct Bucket {
    double num_tokens = 0;  // averages; 0: never seen
    double micros = 0;
  };

  static constexpr size_t kBucketsPerOctave = 4;
  static constexpr size_t kNumBuckets = 18 * kBucketsPerOctave;  // kMaxTokensPerStepLimit is 2^17
  static size_t BucketOf(int64_t num_tokens);

  std::array<Bucket, kNumBuckets> buckets_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_STEP_COST_H_
