// StepCost learns from the steps that were answered how long steps take: what one more token costs,
// how many cost nothing, and what reading the K and V of the tokens before them costs. A step that
// decodes waits for weights to be read, not for products, so it has room for tokens of a prompt.
//
// Steps are kept apart by their tokens, four buckets to a power of two, each with moving averages
// of tokens, of tokens read, and of time. Between two buckets that were seen, all are taken to be
// linear. By how much steps of as many tokens are longer that read more gives the time of a token
// read: a slope by least squares over about the last thousand steps, the same for all buckets. With
// that, a sequence that decodes is told from a token of a prompt, for which next to nothing is read
// beside it.
//
// Thread safety: not thread-safe; owned by PreemptionCost.
// Units:         microseconds.
// Cost:          O(buckets), of which there are 72.
// Source:        prompts in the spare compute of decode steps: Sarathi, Agrawal et al. 2023. Time
//                by tokens and, apart, by what attention reads: Vidur, Agrawal et al. 2024,
//                "operator triaging".
#ifndef QUIRE_SCHEDULER_CORE_STEP_COST_H_
#define QUIRE_SCHEDULER_CORE_STEP_COST_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace quire {

// Tokens whose K and V are read when num_tokens are computed behind num_computed. sliding_window:
// as in StepLimits.
int64_t NumContextTokens(int32_t num_computed, int32_t num_tokens, int32_t sliding_window);

class StepCost {
 public:
  // A step of num_tokens took so long; its sequences attended to num_context tokens in all.
  // REQUIRES: num_tokens >= 1, num_context >= 0, micros > 0.
  void ObserveStep(int64_t num_tokens, int64_t num_context, double micros);

  // What a step of num_tokens would take that reads what such steps read lately; 0 while nothing is
  // known. Beyond the most tokens that were seen, time is taken to be proportional to them.
  double StepMicros(int64_t num_tokens) const;

  // The same, or what larger steps take if that is less: a size that is not seen any more, since
  // prompts are in every step, does not stand for a step that hung. REQUIRES: num_tokens >= 1.
  double LeastMicros(int64_t num_tokens) const;

  // Of the largest steps that were seen; 0 while nothing is known.
  int64_t most_tokens() const;

  // The most tokens with which a step takes no longer, as far as is known: the largest number while
  // nothing is, 0 where every step took longer. Twice the tokens are taken to need twice the time
  // at most, so a step that hung is no limit for good to those that are smaller. How long a step
  // takes is its mean and so many mean deviations.
  int64_t TokensWithin(double micros, double num_deviations) const;

  // Of StepMicros, all but reading.
  double MicrosWithoutContext(int64_t num_tokens) const;

  // What reading so many tokens adds to a step.
  double ContextMicros(int64_t num_context) const {
    return micros_by_context_ * static_cast<double>(num_context);
  }

  // How many tokens a step of num_tokens can take on and be longer by a fiftieth at most. As far
  // as it was seen: 0 while nothing is known.
  int64_t SpareTokens(int64_t num_tokens) const;

 private:
  struct Bucket {
    double num_tokens = 0;  // averages; 0: never seen
    double num_context = 0;
    double micros = 0;
    double deviation = 0;  // mean distance of micros from what was expected
  };

  static constexpr size_t kBucketsPerOctave = 4;
  static constexpr size_t kNumBuckets = 18 * kBucketsPerOctave;  // kMaxTokensPerStepLimit is 2^17
  static size_t BucketOf(int64_t num_tokens);

  // Between the buckets that were seen.
  Bucket At(double num_tokens) const;
  double MicrosWithoutContext(const Bucket& bucket) const;
  void LearnContext(double more_context, double more_micros);  // than was expected

  std::array<Bucket, kNumBuckets> buckets_;
  double micros_by_context_ = 0;
  // Moving sums of squares and of products, of what steps were above what was expected of them.
  double context_variance_ = 0;
  double context_covariance_ = 0;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_STEP_COST_H_
