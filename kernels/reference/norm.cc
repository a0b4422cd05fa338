// RMSNorm: Zhang and Sennrich 2019, eq. 4, with eps inside the root as in Hugging Face. LayerNorm:
// Ba, Kiros and Hinton 2016, with the biased variance.
#include <algorithm>
#include <cmath>

#include "kernels/reference/reference_ops.h"

namespace quire::reference {
namespace {

// Computes out = (x - mean) / sqrt(variance + eps) * weight + bias, where the variance is the
// average of (x - mean)^2.
void NormalizeRow(const NormParams& p, const float* x, double mean, float* out) {
  double sum_of_squares = 0.0;
  for (int64_t d = 0; d < p.width; ++d) {
    sum_of_squares += (x[d] - mean) * (x[d] - mean);
  }
  double inverse = 1.0 / std::sqrt(sum_of_squares / static_cast<double>(p.width) + p.eps);
  for (int64_t d = 0; d < p.width; ++d) {
    double bias = p.bias != nullptr ? p.bias[d] : 0.0;
    out[d] = static_cast<float>((x[d] - mean) * inverse * p.weight[d] + bias);
  }
}

}  // namespace

void Norm(const NormParams& p) {
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    float* row = p.residual + t * p.width;
    double sum = 0.0;
    for (int64_t d = 0; d < p.width; ++d) {
      if (p.delta != nullptr) {
        row[d] += static_cast<const float*>(p.delta)[t * p.width + d];
      }
      sum += row[d];
    }
    bool centered = p.kind == NormKind::kLayerNorm;
    double mean = centered ? sum / static_cast<double>(p.width) : 0.0;
    float* out = static_cast<float*>(p.out) + t * p.width;
    NormalizeRow(p, row, mean, out);
    if (p.out_f32 != nullptr) {
      std::copy_n(out, p.width, p.out_f32 + t * p.width);
    }
  }
}

}  // namespace quire::reference
