#include "kernels/cpu/candidate_set.h"

#include <algorithm>
#include <limits>

namespace quire {

CandidateSet::CandidateSet(const CandidateMemory& memory,
                           int64_t count,
                           float max_logit,
                           float temperature)
    : memory_(memory),
      max_logit_(max_logit),
      bucket_scale_(kCandidateBucketsPerUnit / temperature) {
  for (int64_t i = 0; i < count; ++i) {
    if (memory_.weights[i] > 0.0F) {
      memory_.ids[size_] = memory_.ids[i];
      memory_.logits[size_] = memory_.logits[i];
      memory_.weights[size_] = memory_.weights[i];
      ++size_;
    }
  }
}

double CandidateSet::TotalMass() const {
  double total = 0.0;
  for (int64_t i = 0; i < size_; ++i) {
    total += memory_.weights[i];
  }
  return total;
}

void CandidateSet::KeepLikeliest(int64_t count) {
  if (count < size_) {
    Cut({.count = count, .mass = std::numeric_limits<double>::infinity()});
  }
}

void CandidateSet::KeepMass(double mass) { Cut({.count = size_, .mass = mass}); }

int32_t CandidateSet::BucketOf(int64_t i) const {
  const float distance = (max_logit_ - memory_.logits[i]) * bucket_scale_;
  constexpr float kLast = kCandidateBuckets - 1;
  return static_cast<int32_t>(distance < kLast ? distance : kLast);
}

bool CandidateSet::IsLikelier(int64_t a, int64_t b) const {
  const float logit_a = memory_.logits[a];
  const float logit_b = memory_.logits[b];
  return logit_a > logit_b || (logit_a == logit_b && memory_.ids[a] < memory_.ids[b]);
}

void CandidateSet::Cut(Limit limit) {
  std::fill_n(memory_.buckets, kCandidateBuckets, CandidateBucket{});
  for (int64_t i = 0; i < size_; ++i) {
    CandidateBucket& bucket = memory_.buckets[BucketOf(i)];
    bucket.mass += memory_.weights[i];
    ++bucket.count;
  }
  Limit before;
  for (int32_t b = 0; b < kCandidateBuckets; ++b) {
    const CandidateBucket& bucket = memory_.buckets[b];
    if (before.count + bucket.count >= limit.count || before.mass + bucket.mass >= limit.mass) {
      KeepUpTo(LastKeptInBucket(b, limit, before));
      return;
    }
    before.count += bucket.count;
    before.mass += bucket.mass;
  }
}

// Returns the index of the bucket's least likely candidate that is kept under the limit. `before`
// has the number and the mass of the candidates in earlier buckets, all of which are kept.
int64_t CandidateSet::LastKeptInBucket(int32_t bucket, Limit limit, Limit before) {
  int64_t members = 0;
  for (int64_t i = 0; i < size_; ++i) {
    if (BucketOf(i) == bucket) {
      memory_.border[members++] = static_cast<int32_t>(i);
    }
  }
  std::sort(memory_.border, memory_.border + members, [this](int32_t a, int32_t b) {
    return IsLikelier(a, b);
  });
  Limit kept = before;
  int64_t last = 0;
  for (int64_t m = 0; m < members; ++m) {
    if (m > 0 && (kept.count >= limit.count || kept.mass >= limit.mass)) {
      break;
    }
    last = memory_.border[m];
    kept.mass += memory_.weights[last];
    ++kept.count;
  }
  return last;
}

void CandidateSet::KeepUpTo(int64_t last) {
  const float logit = memory_.logits[last];
  const TokenId id = memory_.ids[last];
  int64_t kept = 0;
  for (int64_t i = 0; i < size_; ++i) {
    if (memory_.logits[i] > logit || (memory_.logits[i] == logit && memory_.ids[i] <= id)) {
      memory_.ids[kept] = memory_.ids[i];
      memory_.logits[kept] = memory_.logits[i];
      memory_.weights[kept] = memory_.weights[i];
      ++kept;
    }
  }
  size_ = kept;
}

TokenId CandidateSet::Draw(double u) const {
  const double target = u * TotalMass();
  double running = 0.0;
  for (int64_t i = 0; i < size_; ++i) {
    running += memory_.weights[i];
    if (running > target) {
      return memory_.ids[i];
    }
  }
  return memory_.ids[size_ - 1];
}

}  // namespace quire
