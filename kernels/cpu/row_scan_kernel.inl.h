// The passes of RowScan as templates over a Simd struct. See row_scan.h.
#ifndef QUIRE_KERNELS_CPU_ROW_SCAN_KERNEL_INL_H_
#define QUIRE_KERNELS_CPU_ROW_SCAN_KERNEL_INL_H_

#include <cstdint>

#include "kernels/cpu/row_scan.h"

namespace quire {

template <typename S>
struct RowScanKernel {
  using Vec = typename S::Vec;
  static constexpr float kInfinity = __builtin_inff();

  // Loads n values, at most a vector. Lanes beyond n hold `fill`.
  static Vec LoadFilled(const float* p, int64_t n, float fill) {
    if (n >= S::kLanes) {
      return S::Load(p);
    }
    const int lanes = static_cast<int>(n);
    return S::Select((1U << lanes) - 1U, S::LoadN(p, lanes), S::Broadcast(fill));
  }

  static bool BlockMax(const float* row, int64_t n, bool accept_banned, float* block_max) {
    const float least = accept_banned ? -kInfinity : -__FLT_MAX__;
    const Vec lowest = S::Broadcast(least);
    const Vec highest = S::Broadcast(__FLT_MAX__);
    uint32_t bad = 0;
    for (int64_t begin = 0; begin < n; begin += kScanBlock) {
      const int64_t end = begin + kScanBlock < n ? begin + kScanBlock : n;
      Vec greatest = S::Broadcast(-kInfinity);
      for (int64_t i = begin; i < end; i += S::kLanes) {
        const Vec v = LoadFilled(row + i, end - i, least);
        bad |= ~(S::GreaterEqualMask(v, lowest) & S::GreaterEqualMask(highest, v));
        greatest = S::Max(greatest, v);
      }
      block_max[begin / kScanBlock] = S::ReduceMax(greatest);
    }
    constexpr uint32_t kAllLanes = (1U << S::kLanes) - 1U;
    return (bad & kAllLanes) == 0;
  }

  static void ExpWeights(const float* row,
                         int64_t n,
                         float shift,
                         float factor,
                         float floor,
                         float* weights,
                         float* block_sum) {
    const Vec shift_vec = S::Broadcast(shift);
    const Vec factor_vec = S::Broadcast(factor);
    const Vec floor_vec = S::Broadcast(floor);
    for (int64_t begin = 0; begin < n; begin += kScanBlock) {
      const int64_t end = begin + kScanBlock < n ? begin + kScanBlock : n;
      Vec sum = S::Zero();
      for (int64_t i = begin; i < end; i += S::kLanes) {
        const Vec v = LoadFilled(row + i, end - i, -kInfinity);
        const Vec raw = S::Exp(S::Mul(S::Sub(v, shift_vec), factor_vec));
        const Vec weight = S::Select(S::GreaterEqualMask(raw, floor_vec), raw, S::Zero());
        sum = S::Add(sum, weight);
        if (weights != nullptr) {
          const int64_t left = end - i;
          S::StoreN(weights + i, weight, left < S::kLanes ? static_cast<int>(left) : S::kLanes);
        }
      }
      block_sum[begin / kScanBlock] = S::ReduceSum(sum);
    }
  }

  static double MassAtLeast(const float* weights, int64_t n, float bound) {
    const Vec bound_vec = S::Broadcast(bound);
    double mass = 0.0;
    for (int64_t begin = 0; begin < n; begin += kScanBlock) {
      const int64_t end = begin + kScanBlock < n ? begin + kScanBlock : n;
      Vec sum = S::Zero();
      for (int64_t i = begin; i < end; i += S::kLanes) {
        const Vec v = LoadFilled(weights + i, end - i, 0.0F);
        sum = S::Add(sum, S::Select(S::GreaterEqualMask(v, bound_vec), v, S::Zero()));
      }
      mass += static_cast<double>(S::ReduceSum(sum));
    }
    return mass;
  }

  static int64_t Collect(const float* row, int64_t n, float bound, int32_t* ids) {
    const Vec bound_vec = S::Broadcast(bound);
    int64_t count = 0;
    for (int64_t i = 0; i < n; i += S::kLanes) {
      const int64_t left = n - i;
      uint32_t mask = S::GreaterEqualMask(LoadFilled(row + i, left, 0.0F), bound_vec);
      if (left < S::kLanes) {
        mask &= (1U << static_cast<int>(left)) - 1U;
      }
      for (; mask != 0; mask &= mask - 1U) {
        ids[count++] = static_cast<int32_t>(i) + __builtin_ctz(mask);
      }
    }
    return count;
  }

  static constexpr RowScan kScan = {.block_max = &BlockMax,
                                    .exp_weights = &ExpWeights,
                                    .mass_at_least = &MassAtLeast,
                                    .collect = &Collect};
};

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_ROW_SCAN_KERNEL_INL_H_
