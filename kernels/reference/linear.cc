#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "kernels/api/linear_source.h"
#include "kernels/reference/element.h"
#include "kernels/reference/pack_linear.h"
#include "kernels/reference/reference_ops.h"

namespace quire::reference {
namespace {

// Holds the weights as fp32 rows. Ignores LinearSource::num_segments, which fixes the order of fp32
// additions, because this backend adds in double.
class ReferenceLinear : public PackedLinear {
 public:
  ReferenceLinear(int64_t in_features, std::vector<float> weight, std::vector<float> bias)
      : in_features_(in_features), weight_(std::move(weight)), bias_(std::move(bias)) {}

  int64_t in_features() const override { return in_features_; }
  int64_t out_features() const override {
    return in_features_ == 0 ? 0 : static_cast<int64_t>(weight_.size()) / in_features_;
  }
  int64_t bytes() const override {
    return static_cast<int64_t>((weight_.size() + bias_.size()) * sizeof(float));
  }

  const float* row(int64_t n) const { return weight_.data() + n * in_features_; }
  double bias(int64_t n) const { return bias_.empty() ? 0.0 : bias_[static_cast<size_t>(n)]; }

 private:
  int64_t in_features_;
  std::vector<float> weight_;  // [out_features, in_features]
  std::vector<float> bias_;    // [out_features], or empty
};

}  // namespace

absl::StatusOr<std::unique_ptr<PackedLinear>> PackLinear(const LinearSource& source) {
  QUIRE_ASSIGN_OR_RETURN(const LinearShape shape, CheckLinearSource(source));
  std::vector<float> weight;
  for (const MatrixView& part : source.parts) {
    for (int64_t i = 0; i < part.rows * part.cols; ++i) {
      weight.push_back(LoadElement(part.data, PlainTypeOf(part.format), i));
    }
  }
  std::vector<float> bias(source.bias.begin(), source.bias.end());
  return std::make_unique<ReferenceLinear>(shape.cols, std::move(weight), std::move(bias));
}

void Linear(const LinearParams& p) {
  const auto& linear = static_cast<const ReferenceLinear&>(*p.weight);
  int64_t cols = linear.in_features();
  int64_t rows = linear.out_features();
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    for (int64_t n = 0; n < rows; ++n) {
      double sum = 0.0;
      for (int64_t k = 0; k < cols; ++k) {
        sum += double{static_cast<const float*>(p.x)[t * cols + k]} * linear.row(n)[k];
      }
      static_cast<float*>(p.y)[t * rows + n] = static_cast<float>(sum + linear.bias(n));
    }
  }
}

}  // namespace quire::reference
