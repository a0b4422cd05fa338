// Activations as a template over a Simd struct. See dense.h.
#ifndef QUIRE_KERNELS_CPU_ACTIVATE_KERNEL_INL_H_
#define QUIRE_KERNELS_CPU_ACTIVATE_KERNEL_INL_H_

#include <cstdint>

#include "kernels/api/dense.h"
#include "kernels/cpu/row_tasks.h"

namespace quire {

template <typename S>
struct ActivateKernel {
  using Vec = typename S::Vec;

  static Vec Sigmoid(Vec x, Vec y) {  // x / (1 + exp(-y))
    return S::Div(x, S::Add(S::Broadcast(1.0F), S::Exp(S::Sub(S::Zero(), y))));
  }

  struct Silu {
    static Vec Apply(Vec x) { return Sigmoid(x, x); }
  };

  struct Relu {
    static Vec Apply(Vec x) { return S::Max(S::Zero(), x); }
  };

  struct GeluTanh {
    // Returns 0.5 x (1 + tanh(u)), which is x / (1 + exp(-2u)), where u = sqrt(2 / pi) (x +
    // 0.044715 x^3). `cubic` is 2u / x.
    static Vec Apply(Vec x) {
      const Vec cubic =
          S::Fma(S::Mul(x, x), S::Broadcast(0.0713548163F), S::Broadcast(1.59576912F));
      return Sigmoid(x, S::Mul(x, cubic));
    }
  };

  struct Gelu {
    // Returns 0.5 x erfc(-x / sqrt(2)). For z >= 0, erfc(z) = t exp(p(t) - z^2) with
    // t = 1 / (1 + z / 2). The polynomial p was fitted to ln(exp(z^2) erfc(z) / t), z in [0, 7].
    static Vec Apply(Vec x) {
      const Vec z = S::Mul(S::Max(S::Sub(S::Zero(), x), x), S::Broadcast(0.707106781F));
      const Vec one = S::Broadcast(1.0F);
      const Vec t = S::Div(one, S::Fma(z, S::Broadcast(0.5F), one));
      Vec p = S::Broadcast(0.105521436F);
      for (const float c : {-0.460617303F,
                            0.62323482F,
                            0.0376793577F,
                            -0.710675619F,
                            0.351030563F,
                            -0.0904542722F,
                            0.414363706F,
                            0.995181816F,
                            -1.26526448F}) {
        p = S::Fma(p, t, S::Broadcast(c));
      }
      const Vec erfc = S::Mul(t, S::Exp(S::Sub(p, S::Mul(z, z))));
      const Vec factor =
          S::Select(S::GreaterMask(x, S::Zero()), S::Sub(S::Broadcast(2.0F), erfc), erfc);
      return S::Mul(S::Mul(S::Broadcast(0.5F), x), factor);
    }
  };

  static void Run(const ActivationParams& params, ThreadTeam& team) {
    switch (params.kind) {
      case ActivationKind::kSilu:
        return RunRows<Silu>(params, team);
      case ActivationKind::kRelu:
        return RunRows<Relu>(params, team);
      case ActivationKind::kGelu:
        return RunRows<Gelu>(params, team);
      case ActivationKind::kGeluTanh:
        return RunRows<GeluTanh>(params, team);
    }
  }

  template <typename Function>
  static void RunRows(const ActivationParams& params, ThreadTeam& team) {
    const int64_t width = params.width;
    const int64_t in_width = params.gated ? 2 * width : width;
    ForEachRow(params.num_tokens, in_width, team, [&](int64_t i) {
      const float* in = static_cast<const float*>(params.in) + i * in_width;
      float* out = static_cast<float*>(params.out) + i * width;
      RunRow<Function>(in, params.gated ? in + width : nullptr, width, out);
    });
  }

  // Writes Function(in) * up, or Function(in) if up is null.
  template <typename Function>
  static void RunRow(const float* in, const float* up, int64_t width, float* out) {
    int64_t d = 0;
    for (; d + S::kLanes <= width; d += S::kLanes) {
      const Vec v = Function::Apply(S::Load(in + d));
      S::Store(out + d, up == nullptr ? v : S::Mul(v, S::Load(up + d)));
    }
    if (d < width) {
      const int left = static_cast<int>(width - d);
      const Vec v = Function::Apply(S::LoadN(in + d, left));
      S::StoreN(out + d, up == nullptr ? v : S::Mul(v, S::LoadN(up + d, left)), left);
    }
  }
};

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_ACTIVATE_KERNEL_INL_H_
