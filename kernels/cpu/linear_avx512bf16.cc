#include <immintrin.h>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/linear_kernel.inl.h"
#include "kernels/cpu/simd_avx512.h"

namespace quire {
namespace {

// Multiplies pairs of values of k, by the instruction vdpbf16ps. REQUIRES: the input is rounded to
// bf16, and its segments are padded with zeros (RoundInput).
struct DotOperand {
  using Weight = BFloat16;
  using Input = BFloat16;
  static constexpr int kGroup = 2;
  static constexpr bool kPaddedInput = true;

  template <int kRows, int kVecs>
  static void Step(const Input* x,
                   int64_t x_stride,
                   const Weight* w,
                   int /*count*/,
                   __m512 (&sum)[kRows][kVecs]) {
    __m512bh b[kVecs];
    for (int j = 0; j < kVecs; ++j) {
      b[j] =
          reinterpret_cast<__m512bh>(_mm512_loadu_si512(w + int64_t{2} * j * SimdAvx512::kLanes));
    }
    for (int i = 0; i < kRows; ++i) {
      int pair = 0;
      __builtin_memcpy(&pair, x + i * x_stride, sizeof(pair));
      const auto a = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
      for (int j = 0; j < kVecs; ++j) {
        sum[i][j] = _mm512_dpbf16_ps(sum[i][j], a, b[j]);
      }
    }
  }
};

using Kernel = LinearKernel<SimdAvx512, kAvx512Panel.panel / kAvx512Panel.lanes>;

void RoundSegment(const float* from, int64_t length, int64_t padded_length, BFloat16* to) {
  int64_t i = 0;
  for (; i + SimdAvx512::kLanes <= length; i += SimdAvx512::kLanes) {
    SimdAvx512::Store(to + i, SimdAvx512::Load(from + i));
  }
  const int left = static_cast<int>(length - i);
  const int left_padded = static_cast<int>(padded_length - i);
  SimdAvx512::StoreN(to + i, SimdAvx512::LoadN(from + i, left), left_padded);
}

// Returns x rounded to bf16. A row of the result consists of num_segments padded segments.
const BFloat16* RoundInput(const LinearParams& params,
                           const CpuPackedLinear& weight,
                           ThreadTeam& team) {
  constexpr int64_t kRowsPerTask = 16;
  const int64_t length = weight.segment_length();
  const int64_t padded = weight.padded_segment_length();
  const int64_t stride = weight.num_segments() * padded;
  auto* rounded = static_cast<BFloat16*>(
      team.SharedScratch(static_cast<size_t>(params.num_tokens * stride) * sizeof(BFloat16)));
  const int64_t tasks = (params.num_tokens + kRowsPerTask - 1) / kRowsPerTask;
  team.ParallelFor(tasks, [&](int64_t task, int /*thread*/) {
    for (int64_t row = task * kRowsPerTask;
         row < (task + 1) * kRowsPerTask && row < params.num_tokens;
         ++row) {
      for (int segment = 0; segment < weight.num_segments(); ++segment) {
        RoundSegment(
            static_cast<const float*>(params.x) + row * weight.in_features() + segment * length,
            length,
            padded,
            rounded + row * stride + segment * padded);
      }
    }
  });
  return rounded;
}

}  // namespace

void LinearAvx512Bf16(const LinearParams& params, ThreadTeam& team) {
  const auto& weight = *static_cast<const CpuPackedLinear*>(params.weight);
  if (weight.dtype() != DType::kBF16) {
    return LinearAvx512(params, team);
  }
  Kernel::Run<DotOperand>(params,
                          RoundInput(params, weight, team),
                          weight.num_segments() * weight.padded_segment_length(),
                          team);
}

}  // namespace quire
