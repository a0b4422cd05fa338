// RMSNorm and LayerNorm as a template over a Simd struct. See dense.h.
#ifndef QUIRE_KERNELS_CPU_NORM_KERNEL_INL_H_
#define QUIRE_KERNELS_CPU_NORM_KERNEL_INL_H_

#include <cstdint>
#include <cstring>

#include "kernels/api/dense.h"
#include "kernels/cpu/row_tasks.h"

namespace quire {

template <typename S>
struct NormKernel {
  using Vec = typename S::Vec;
  // Number of independent sums per row. Several sums hide the latency of the additions. Vector i of
  // a row is added to sum i % kSums.
  static constexpr int kSums = 4;

  static void Run(const NormParams& params, ThreadTeam& team) {
    ForEachRow(params.num_tokens, params.width, team, [&](int64_t i) {
      float* residual = params.residual + i * params.width;
      if (params.delta != nullptr) {
        AddTo(residual, static_cast<const float*>(params.delta) + i * params.width, params.width);
      }
      float* out = static_cast<float*>(params.out) + i * params.width;
      NormRow(params, residual, out);
      if (params.out_f32 != nullptr) {
        std::memcpy(params.out_f32 + i * params.width,
                    out,
                    static_cast<size_t>(params.width) * sizeof(float));
      }
    });
  }

  static void AddTo(float* x, const float* delta, int64_t width) {
    int64_t d = 0;
    for (; d + S::kLanes <= width; d += S::kLanes) {
      S::Store(x + d, S::Add(S::Load(x + d), S::Load(delta + d)));
    }
    if (d < width) {
      const int left = static_cast<int>(width - d);
      S::StoreN(x + d, S::Add(S::LoadN(x + d, left), S::LoadN(delta + d, left)), left);
    }
  }

  // Returns the sum of a row's terms. term(sum, vector, lanes) returns `sum` plus the terms of a
  // vector. Only the vector's first `lanes` lanes belong to the row, so `term` must add 0 for the
  // other lanes.
  template <typename Term>
  static float SumRow(const float* x, int64_t width, const Term& term) {
    Vec sums[kSums] = {S::Zero(), S::Zero(), S::Zero(), S::Zero()};
    int64_t d = 0;
    for (; d + kSums * S::kLanes <= width; d += kSums * S::kLanes) {
      for (int j = 0; j < kSums; ++j) {
        sums[j] = term(sums[j], S::Load(x + d + j * S::kLanes), S::kLanes);
      }
    }
    for (int j = 0; d < width; d += S::kLanes, ++j) {
      const int64_t left = width - d;
      const int lanes = left < S::kLanes ? static_cast<int>(left) : S::kLanes;
      sums[j] = term(sums[j], S::LoadN(x + d, lanes), lanes);
    }
    return S::ReduceSum(S::Add(S::Add(sums[0], sums[1]), S::Add(sums[2], sums[3])));
  }

  static float Mean(const float* x, int64_t width) {
    return SumRow(x, width, [](Vec sum, Vec v, int) { return S::Add(sum, v); }) /
           static_cast<float>(width);
  }

  static float MeanSquare(const float* x, int64_t width, float center) {
    const Vec mean = S::Broadcast(center);
    const float sum = SumRow(x, width, [&](Vec total, Vec v, int lanes) {
      Vec centered = S::Sub(v, mean);
      if (lanes < S::kLanes) {
        centered = S::Select((1U << lanes) - 1U, centered, S::Zero());
      }
      return S::Fma(centered, centered, total);
    });
    return sum / static_cast<float>(width);
  }

  static void NormRow(const NormParams& params, const float* x, float* out) {
    const int64_t width = params.width;
    const bool centered = params.kind == NormKind::kLayerNorm;
    const float center = centered ? Mean(x, width) : 0.0F;
    const float variance = MeanSquare(x, width, center);
    const float scale =
        static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(variance + params.eps)));
    const Vec mean = S::Broadcast(center);
    const Vec factor = S::Broadcast(scale);
    for (int64_t d = 0; d < width; d += S::kLanes) {
      const int lanes = width - d < S::kLanes ? static_cast<int>(width - d) : S::kLanes;
      Vec v = S::Mul(S::Sub(S::LoadN(x + d, lanes), mean), factor);
      v = S::Mul(v, S::LoadN(params.weight + d, lanes));
      if (params.bias != nullptr) {
        v = S::Add(v, S::LoadN(params.bias + d, lanes));
      }
      S::StoreN(out + d, v, lanes);
    }
  }
};

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_NORM_KERNEL_INL_H_
