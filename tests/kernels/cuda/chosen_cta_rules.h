// ChosenCtaRules sets rules for the CTAs of launches while it lives. On a GPU it does nothing.
//
// Usage: const ChosenCtaRules rules({.order = emulator::CtaOrder::kBackward});
//
// Thread safety: the launches of the thread that made it.
#ifndef QUIRE_TESTS_KERNELS_CUDA_CHOSEN_CTA_RULES_H_
#define QUIRE_TESTS_KERNELS_CUDA_CHOSEN_CTA_RULES_H_

#include "kernels/cuda/emulator/cta_rules.h"

namespace quire::gpu {
namespace emulator {

// Weak, because tests that run on a GPU are linked without the emulator.
[[gnu::weak]] CtaRules SetCtaRules(CtaRules rules);

}  // namespace emulator

class ChosenCtaRules {
 public:
  explicit ChosenCtaRules(emulator::CtaRules rules) : former_(Set(rules)) {}
  ~ChosenCtaRules() { Set(former_); }
  ChosenCtaRules(const ChosenCtaRules&) = delete;
  ChosenCtaRules& operator=(const ChosenCtaRules&) = delete;

 private:
  static emulator::CtaRules Set(emulator::CtaRules rules) {
    return &emulator::SetCtaRules != nullptr ? emulator::SetCtaRules(rules) : rules;
  }

  emulator::CtaRules former_;
};

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_KERNELS_CUDA_CHOSEN_CTA_RULES_H_
