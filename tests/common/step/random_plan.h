// Random plans for tests of the codec: any numbers, sensible or not, that a plan can hold.
#ifndef QUIRE_TESTS_COMMON_STEP_RANDOM_PLAN_H_
#define QUIRE_TESTS_COMMON_STEP_RANDOM_PLAN_H_

#include "common/step/step_plan.h"
#include "common/step/step_result.h"
#include "tests/support/random.h"

namespace quire {

StepPlan RandomPlan(Random& random);
StepResult RandomResult(Random& random);

}  // namespace quire

#endif  // QUIRE_TESTS_COMMON_STEP_RANDOM_PLAN_H_
