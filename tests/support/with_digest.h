// WithDigest sets the digest of a hand-written plan. The scheduler's plans already have a digest.
//
// Thread safety: a free function.
#ifndef QUIRE_TESTS_SUPPORT_WITH_DIGEST_H_
#define QUIRE_TESTS_SUPPORT_WITH_DIGEST_H_

#include "common/step/step_plan.h"

namespace quire {

inline StepPlan WithDigest(StepPlan plan) {
  plan.digest = DigestOf(plan);
  return plan;
}

}  // namespace quire

#endif  // QUIRE_TESTS_SUPPORT_WITH_DIGEST_H_
