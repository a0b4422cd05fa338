// ChosenCtaRules sets rules for the CTAs of launches while it lives.
//
// Usage: const ChosenCtaRules rules({.order = emulator::CtaOrder::kBackward});
//
// Thread safety: the launches of the thread that made it.
#ifndef QUIRE_TESTS_KERNELS_CUDA_CHOSEN_CTA_RULES_H_
#define QUIRE_TESTS_KERNELS_CUDA_CHOSEN_CTA_RULES_H_

#include "kernels/cuda/emulator/cta_rules.h"

namespace quire::gpu {

class ChosenCtaRules {
 public:
  explicit ChosenCtaRules(emulator::CtaRules rules) : former_(emulator::SetCtaRules(rules)) {}
  ~ChosenCtaRules() { emulator::SetCtaRules(former_); }
  ChosenCtaRules(const ChosenCtaRules&) = delete;
  ChosenCtaRules& operator=(const ChosenCtaRules&) = delete;

 private:
  emulator::CtaRules former_;
};

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_KERNELS_CUDA_CHOSEN_CTA_RULES_H_
