#include "scheduler/core/step_cost.h"

#include <algorithm>
#include <bit>

#include "common/base/check.h"

namespace quire {
namespace {

constexpr double kWeight = 1.0 / 8;  // of a new observation
constexpr double kSpareShare = 0.02;

}  // namespace

size_t StepCost::BucketOf(int64_t num_tokens) {
  const auto tokens = static_cast<uint64_t>(num_tokens);
  const auto octave = static_cast<size_t>(std::bit_width(tokens)) - 1;
  const size_t quarter = ((tokens * kBucketsPerOctave) >> octave) % kBucketsPerOctave;
  return std::min(kNumBuckets - 1, octave * kBucketsPerOctave + quarter);
}

void StepCost::ObserveStep(int64_t num_tokens, double micros) {
  QUIRE_CHECK(num_tokens >= 1);
  Bucket& bucket = buckets_[BucketOf(num_tokens)];
  const double weight = bucket.num_tokens == 0 ? 1 : kWeight;
  bucket.num_tokens += weight * (static_cast<double>(num_tokens) - bucket.num_tokens);
  bucket.micros += weight * (micros - bucket.micros);
}

double StepCost::StepMicros(int64_t num_tokens) const {
  const auto wanted = static_cast<double>(num_tokens);
  Bucket below;
  for (const Bucket& bucket : buckets_) {
    if (bucket.num_tokens == 0) {
      continue;
    }
    if (bucket.num_tokens >= wanted) {
      if (below.num_tokens == 0) {
        return bucket.micros;
      }
      const double share = (wanted - below.num_tokens) / (bucket.num_tokens - below.num_tokens);
      return below.micros + share * (bucket.micros - below.micros);
    }
    below = bucket;
  }
  return below.num_tokens == 0 ? 0 : below.micros * wanted / below.num_tokens;
}

int64_t StepCost::SpareTokens(int64_t num_tokens) const {
  const double limit = (1 + kSpareShare) * StepMicros(num_tokens);
  auto last = static_cast<double>(num_tokens);
  double last_micros = StepMicros(num_tokens);
  for (const Bucket& bucket : buckets_) {
    if (bucket.num_tokens <= last) {
      continue;
    }
    if (bucket.micros > limit) {
      last += (bucket.num_tokens - last) * (limit - last_micros) / (bucket.micros - last_micros);
      break;
    }
    last = bucket.num_tokens;
    last_micros = bucket.micros;
  }
  return static_cast<int64_t>(last) - num_tokens;
}

}  // namespace quire
