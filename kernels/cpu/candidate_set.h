// CandidateSet is the list of tokens that can still be drawn, in ascending id order. Two cuts
// shorten the list: to the k likeliest tokens, or to the smallest set of likeliest tokens that
// reaches a given mass (the sum of weights).
//
// A token is likelier if its logit is greater or, among equal logits, its id is lower. A cut
// distributes the candidates over buckets of equal width in (max logit - logit) / temperature. It
// sorts only the bucket in which k or the mass is reached, so that a cut is O(n) for flat
// distributions too.
//
// Thread safety: one thread at a time. Owns nothing; see CandidateMemory.
#ifndef QUIRE_KERNELS_CPU_CANDIDATE_SET_H_
#define QUIRE_KERNELS_CPU_CANDIDATE_SET_H_

#include <cstdint>

#include "common/base/ids.h"

namespace quire {

struct CandidateBucket {
  double mass = 0.0;
  int64_t count = 0;
};

// Buckets have the width 1 / 46 in (max logit - logit) / temperature. 4096 buckets reach beyond
// 87.33, where weights become zero (Simd Exp).
inline constexpr int32_t kCandidateBuckets = 4096;
inline constexpr float kCandidateBucketsPerUnit = 46.0F;

// Arrays that the caller owns.
struct CandidateMemory {
  TokenId* ids = nullptr;              // [n]
  float* logits = nullptr;             // [n]
  float* weights = nullptr;            // [n], exp((logit - max) / temperature)
  int32_t* border = nullptr;           // [n], scratch for the bucket that a cut sorts
  CandidateBucket* buckets = nullptr;  // [kCandidateBuckets], scratch
};

class CandidateSet {
 public:
  // The candidates are the first `count` elements of each array. Drops candidates of weight 0.
  CandidateSet(const CandidateMemory& memory, int64_t count, float max_logit, float temperature);

  int64_t size() const { return size_; }
  double TotalMass() const;

  void KeepLikeliest(int64_t count);
  // Keeps the smallest set of likeliest tokens whose weights add up to at least `mass`. Keeps at
  // least one token.
  void KeepMass(double mass);

  // Returns the first token, in id order, at which the running sum of weights exceeds u * total.
  // REQUIRES: size() > 0.
  TokenId Draw(double u) const;

 private:
  struct Limit {
    int64_t count = 0;
    double mass = 0.0;
  };

  void Cut(Limit limit);
  int32_t BucketOf(int64_t i) const;
  bool IsLikelier(int64_t a, int64_t b) const;
  int64_t LastKeptInBucket(int32_t bucket, Limit limit, Limit before);
  void KeepUpTo(int64_t last);

  CandidateMemory memory_;
  int64_t size_ = 0;
  float max_logit_ = 0.0F;
  float bucket_scale_ = 0.0F;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_CANDIDATE_SET_H_
