// CandidateSet is the list of tokens that may still be drawn, in ascending id order, and the cuts
// that shorten it: to the k likeliest, to the smallest set of likeliest tokens that reaches a mass.
//
// "Likelier" is by logit, the lower id first among equals. A cut distributes the candidates over
// buckets of equal width in (max logit - logit) / temperature, and sorts only the bucket where the
// limit falls: O(n) however flat the distribution is.
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

// Weights below exp(-87.33) are zero (Simd Exp), so buckets of 1 / 46 reach all the others.
inline constexpr int32_t kCandidateBuckets = 4096;
inline constexpr float kCandidateBucketsPerUnit = 46.0F;

// Arrays of the caller.
struct CandidateMemory {
  TokenId* ids = nullptr;              // [n]
  float* logits = nullptr;             // [n]
  float* weights = nullptr;            // [n], exp((logit - max) / temperature)
  int32_t* border = nullptr;           // [n], scratch
  CandidateBucket* buckets = nullptr;  // [kCandidateBuckets], scratch
};

class CandidateSet {
 public:
  // The first `count` elements of the arrays; those of weight 0 are dropped.
  CandidateSet(const CandidateMemory& memory, int64_t count, float max_logit, float temperature);

  int64_t size() const { return size_; }
  double TotalMass() const;

  void KeepLikeliest(int64_t count);
  // Keeps likeliest tokens until their mass reaches `mass`, at least one.
  void KeepMass(double mass);

  // The first token, in id order, at which the running sum of weights exceeds u * total.
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
