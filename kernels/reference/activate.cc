// SiLU: Elfwing et al. 2017. GELU and its tanh form: Hendrycks and Gimpel 2016.
#include <cmath>
#include <numbers>

#include "kernels/reference/reference_ops.h"

namespace quire::reference {
namespace {

double ActivationOf(ActivationKind kind, double x) {
  switch (kind) {
    case ActivationKind::kSilu:
      return x / (1.0 + std::exp(-x));
    case ActivationKind::kRelu:
      return x > 0.0 ? x : 0.0;
    case ActivationKind::kGelu:
      return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case ActivationKind::kGeluTanh: {
      double inner = std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x);
      return x / (1.0 + std::exp(-2.0 * inner));  // x (1 + tanh) / 2 would lose digits
    }
  }
  return 0.0;
}

}  // namespace

void Activate(const ActivationParams& p) {
  int64_t in_width = p.gated ? 2 * p.width : p.width;
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    const float* in = static_cast<const float*>(p.in) + t * in_width;
    for (int64_t i = 0; i < p.width; ++i) {
      double value = ActivationOf(p.kind, in[i]);
      if (p.gated) {
        value *= in[p.width + i];
      }
      static_cast<float*>(p.out)[t * p.width + i] = static_cast<float>(value);
    }
  }
}

}  // namespace quire::reference
