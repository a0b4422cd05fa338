// StepCost learns from answered steps how long steps take: what one more token costs, how many more
// tokens are nearly free, and what reading the K and V of earlier tokens costs. A decode step waits
// for weights to be read, not for compute, so it has room for tokens of a prompt.
//
// Steps are grouped by their number of tokens, four buckets to a power of two. Each bucket has
// moving averages of tokens, of tokens whose K and V were read, and of time. Between two buckets
// that were seen, the averages are interpolated linearly. The time per token read is the slope of
// one least-squares fit for all buckets, over about the last thousand steps. The slope tells how
// much longer a step takes if it reads more than other steps with the same number of tokens. So a
// decoding sequence, which reads its whole context, costs more than a prompt token, which adds next
// to no reading.
//
// Thread safety: not thread-safe; owned by PreemptionCost.
// Units:         microseconds.
// Cost:          O(buckets), of which there are 72.
// Source:        prompts in the spare compute of decode steps: Sarathi, Agrawal et al. 2023.
//                Separate times for tokens and for what attention reads: Vidur, Agrawal et al.
//                2024, "operator triaging".
#ifndef QUIRE_SCHEDULER_CORE_STEP_COST_H_
#define QUIRE_SCHEDULER_CORE_STEP_COST_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace quire {

// Number of tokens whose K and V are read when num_tokens tokens are computed after num_computed
// earlier ones. sliding_window: as in StepLimits.
int64_t NumContextTokens(int32_t num_computed, int32_t num_tokens, int32_t sliding_window);

class StepCost {
 public:
  // Records a step of num_tokens, whose sequences attended to num_context tokens in all. REQUIRES:
  // num_tokens >= 1, num_context >= 0, micros > 0.
  void ObserveStep(int64_t num_tokens, int64_t num_context, double micros);

  // Expected time of a step of num_tokens that reads as much K and V as recent steps of this size;
  // 0 while nothing is known. Above the largest step seen, the time is proportional to the tokens.
  double StepMicros(int64_t num_tokens) const;

  // Returns the least of StepMicros(num_tokens) and the times of larger steps. StepMicros alone
  // could stay too high after one small step that hung: if every later step also has prompts, no
  // later small step corrects the time of small steps. REQUIRES: num_tokens >= 1.
  double LeastMicros(int64_t num_tokens) const;

  // Number of tokens of the largest steps so far, averaged; 0 while nothing is known.
  int64_t most_tokens() const;

  // Estimates the largest number of tokens with which a step takes at most micros. Returns the
  // largest int64_t while nothing is known, and 0 if every step took longer. Assumes that n times
  // the tokens take at most n times as long. So fast small steps allow larger steps, even after a
  // larger step hung and its time was learned. The time of a step is taken as its mean plus
  // num_deviations mean deviations.
  int64_t TokensWithin(double micros, double num_deviations) const;

  // As StepMicros, without the time to read K and V of earlier tokens.
  double MicrosWithoutContext(int64_t num_tokens) const;

  // Time that reading num_context tokens adds to a step.
  double ContextMicros(int64_t num_context) const {
    return micros_by_context_ * static_cast<double>(num_context);
  }

  // Returns how many tokens can be added to a step of num_tokens, so that the step takes at most a
  // fiftieth longer and is not larger than the largest step seen. 0 while nothing is known.
  int64_t SpareTokens(int64_t num_tokens) const;

 private:
  struct Bucket {
    // Moving averages over the steps of this bucket.
    double num_tokens = 0;  // 0: the bucket was never seen
    double num_context = 0;
    double micros = 0;
    double deviation = 0;  // mean distance of micros from the expected time
  };

  static constexpr size_t kBucketsPerOctave = 4;
  static constexpr size_t kNumBuckets = 18 * kBucketsPerOctave;  // kMaxTokensPerStepLimit is 2^17
  static size_t BucketOf(int64_t num_tokens);

  // Interpolates between the buckets that were seen.
  Bucket At(double num_tokens) const;
  double MicrosWithoutContext(const Bucket& bucket) const;
  // Called when a step read more_context more tokens, and took more_micros longer, than expected.
  void LearnContext(double more_context, double more_micros);

  std::array<Bucket, kNumBuckets> buckets_;
  double micros_by_context_ = 0;
  double context_variance_ = 0;    // moving sum of more_context * more_context (LearnContext)
  double context_covariance_ = 0;  // moving sum of more_context * more_micros
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_STEP_COST_H_
