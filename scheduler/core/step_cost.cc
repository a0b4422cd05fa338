#include "scheduler/core/step_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <span>

#include "common/base/check.h"

namespace quire {
namespace {

constexpr double kWeight = 1.0 / 8;   // weight of a new observation in a moving average
constexpr double kSpareShare = 0.02;  // spare tokens lengthen a step by at most this share

// A step that took longer than this multiple of its expected time probably hung. It counts as if it
// took just this multiple.
constexpr double kLongest = 2;

// Share of the old sums that LearnContext keeps. While the pool is full, successive steps read
// about the same amount, so it takes many steps to distinguish reading from clock noise.
constexpr double kContextKept = 1 - 1.0 / 1024;

}  // namespace

int64_t NumContextTokens(int32_t num_computed, int32_t num_tokens, int32_t sliding_window) {
  // The first of the num_tokens tokens attends furthest back.
  const int32_t num_before =
      sliding_window > 0 ? std::min(num_computed, sliding_window - 1) : num_computed;
  return int64_t{num_before} + num_tokens;
}

size_t StepCost::BucketOf(int64_t num_tokens) {
  const auto tokens = static_cast<uint64_t>(num_tokens);
  const auto octave = static_cast<size_t>(std::bit_width(tokens)) - 1;
  const size_t quarter = ((tokens * kBucketsPerOctave) >> octave) % kBucketsPerOctave;
  return std::min(kNumBuckets - 1, octave * kBucketsPerOctave + quarter);
}

void StepCost::ObserveStep(int64_t num_tokens, int64_t num_context, double micros) {
  QUIRE_CHECK(num_tokens >= 1 && num_context >= 0 && micros > 0);
  Bucket& bucket = buckets_[BucketOf(num_tokens)];
  const auto tokens = static_cast<double>(num_tokens);
  const auto context = static_cast<double>(num_context);
  const bool is_first = bucket.num_tokens == 0;
  double deviation = 0;
  if (!is_first) {
    const Bucket expected = At(tokens);
    micros = std::min(micros, kLongest * expected.micros);
    LearnContext(context - expected.num_context, micros - expected.micros);
    deviation = std::abs(micros - expected.micros);
  }
  const double weight = is_first ? 1 : kWeight;
  bucket.num_tokens += weight * (tokens - bucket.num_tokens);
  bucket.num_context += weight * (context - bucket.num_context);
  bucket.micros += weight * (micros - bucket.micros);
  bucket.deviation += weight * (deviation - bucket.deviation);
}

void StepCost::LearnContext(double more_context, double more_micros) {
  context_variance_ = kContextKept * context_variance_ + more_context * more_context;
  context_covariance_ = kContextKept * context_covariance_ + more_context * more_micros;
  micros_by_context_ =
      context_variance_ > 0 ? std::max(0.0, context_covariance_ / context_variance_) : 0;
}

StepCost::Bucket StepCost::At(double num_tokens) const {
  Bucket below;
  for (const Bucket& bucket : buckets_) {
    if (bucket.num_tokens == 0) {
      continue;
    }
    if (bucket.num_tokens >= num_tokens) {
      if (below.num_tokens == 0) {
        return bucket;
      }
      const double share = (num_tokens - below.num_tokens) / (bucket.num_tokens - below.num_tokens);
      return {.num_tokens = num_tokens,
              .num_context = std::lerp(below.num_context, bucket.num_context, share),
              .micros = std::lerp(below.micros, bucket.micros, share)};
    }
    below = bucket;
  }
  if (below.num_tokens > 0) {
    const double times = num_tokens / below.num_tokens;
    below = {.num_tokens = num_tokens,
             .num_context = below.num_context * times,
             .micros = below.micros * times};
  }
  return below;
}

double StepCost::StepMicros(int64_t num_tokens) const {
  return At(static_cast<double>(num_tokens)).micros;
}

double StepCost::LeastMicros(int64_t num_tokens) const {
  QUIRE_CHECK(num_tokens >= 1);
  double least = StepMicros(num_tokens);
  for (const Bucket& bucket : std::span(buckets_).subspan(BucketOf(num_tokens))) {
    least = bucket.num_tokens > 0 ? std::min(least, bucket.micros) : least;
  }
  return least;
}

int64_t StepCost::most_tokens() const {
  const auto largest = std::find_if(buckets_.rbegin(), buckets_.rend(), [](const Bucket& bucket) {
    return bucket.num_tokens > 0;
  });
  return largest == buckets_.rend() ? 0 : static_cast<int64_t>(largest->num_tokens);
}

int64_t StepCost::TokensWithin(double micros, double num_deviations) const {
  double tokens_below = 0;  // tokens of the last bucket within the time
  double micros_below = 0;
  double most = 0;
  bool is_known = false;
  for (const Bucket& bucket : buckets_) {
    if (bucket.num_tokens == 0) {
      continue;
    }
    is_known = true;
    const double bucket_micros = bucket.micros + num_deviations * bucket.deviation;
    if (bucket_micros <= micros) {
      tokens_below = bucket.num_tokens;
      micros_below = bucket_micros;
      most = std::max(most, bucket.num_tokens * micros / bucket_micros);
    } else if (tokens_below > 0) {
      const double share = (micros - micros_below) / (bucket_micros - micros_below);
      most = std::max(most, std::lerp(tokens_below, bucket.num_tokens, share));
    }
  }
  constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();
  return is_known && most < static_cast<double>(kUnbounded) ? static_cast<int64_t>(most)
                                                            : kUnbounded;
}

double StepCost::MicrosWithoutContext(int64_t num_tokens) const {
  return MicrosWithoutContext(At(static_cast<double>(num_tokens)));
}

double StepCost::MicrosWithoutContext(const Bucket& bucket) const {
  return std::max(0.0, bucket.micros - micros_by_context_ * bucket.num_context);
}

int64_t StepCost::SpareTokens(int64_t num_tokens) const {
  auto last = static_cast<double>(num_tokens);
  const Bucket now = At(last);
  double last_micros = MicrosWithoutContext(now);
  const double limit = last_micros + kSpareShare * now.micros;
  for (const Bucket& bucket : buckets_) {
    if (bucket.num_tokens <= last) {
      continue;
    }
    const double micros = MicrosWithoutContext(bucket);
    if (micros > limit) {
      last += (bucket.num_tokens - last) * (limit - last_micros) / (micros - last_micros);
      break;
    }
    last = bucket.num_tokens;
    last_micros = micros;
  }
  return static_cast<int64_t>(last) - num_tokens;
}

}  // namespace quire
