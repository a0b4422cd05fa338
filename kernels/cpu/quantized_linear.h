// CpuQuantizedLinear is a linear layer whose weights stay quantized. QuantizedLinear multiplies
// these weights by activations, with rounded inputs (InputType::kInt8) or fp32 inputs.
//
// Rounded inputs: each group of 32 inputs of a row is rounded to 8 bits with one scale a
// (QuantizeVector). The products of a group are summed as integers, without rounding. A group
// contributes, with the factors of weight_block.h,
//
//   sum += float(sum of code * input) * (w * a)             w = scale * group_scale
//   sum += float(sum of input) * (m * a)                    m = -minimum * group_minimum, if any
//
// in ascending order of the groups, where each operation rounds to fp32. The halves of a group of
// Q6_K contribute one after the other, because each half has its own group_scale. With n segments
// (LinearSource::num_segments), segment s has groups [s * G / n, (s + 1) * G / n) of the G groups.
// The segments' sums are added as ((0+1)+(2+3))+((4+5)+(6+7)), then the bias. So a result has the
// same bits on every instruction set, in any batch, and with any number of threads and ranks.
//
// Inputs in fp32 (InputType::kF32): each segment adds x * weight in one accumulator, in ascending
// order of k, with the weights that Dequantize gives. The result has the same bits as that of
// linear.h for an fp32 matrix with the same segments.
//
// Thread safety: one caller at a time per team.
// Cost:          a call with few rows reads the weights once, at memory speed.
// Source:        the integer products follow Dettmers et al. 2022 (LLM.int8) and ggml's Q8_0.
#ifndef QUIRE_KERNELS_CPU_QUANTIZED_LINEAR_H_
#define QUIRE_KERNELS_CPU_QUANTIZED_LINEAR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/api/dense.h"
#include "kernels/cpu/cpu_linear.h"
#include "kernels/cpu/huge_arena.h"
#include "kernels/cpu/packed_codes.h"
#include "kernels/cpu/quantization.h"
#include "kernels/cpu/quantized_kernels.h"
#include "kernels/cpu/thread_team.h"

namespace quire {

class CpuQuantizedLinear final : public CpuLinear {
 public:
  // Packs the source's parts in panels of `lanes` columns. Quantized parts keep their format, other
  // parts are rounded to `rounded` (kQ8_0 or kQ4_0). Errors: kInvalidArgument if CheckLinearSource
  // refuses the source, if columns are not whole groups of 32, or if a weight to round is not
  // finite or too large; kResourceExhausted if memory is lacking; errors of the source's reader.
  // REQUIRES: each quantized format has a kernel (CodeFormat::bits is not 0).
  static absl::StatusOr<std::unique_ptr<CpuQuantizedLinear>> Pack(
      const LinearSource& source,
      int lanes,
      HugeArena& arena,
      ThreadTeam& team,
      WeightFormat rounded = WeightFormat::kQ8_0);
  // Returns the number of bytes that Pack requests from the arena, or nullopt if the number
  // overflows.
  static std::optional<int64_t> BytesFor(const LinearSource& source,
                                         int lanes,
                                         WeightFormat rounded = WeightFormat::kQ8_0);

  bool is_quantized() const override { return true; }
  int64_t in_features() const override { return in_features_; }
  int64_t out_features() const override { return out_features_; }
  int64_t bytes() const override { return bytes_; }
  std::vector<std::span<const std::byte>> memory() const override {
    return {{data_.get(), static_cast<size_t>(bytes_)}, std::as_bytes(std::span(bias_))};
  }
  // Writes the bits that Dequantize gives.
  void WidenRow(int64_t row, float* out) const override;

  const std::vector<PackedCodes>& parts() const { return parts_; }
  int num_segments() const { return num_segments_; }
  const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }

 private:
  CpuQuantizedLinear(const LinearSource& source, int lanes, WeightFormat rounded);
  absl::Status PackPanels(const LinearSource& source, size_t part, ThreadTeam& team);

  int64_t in_features_ = 0;
  int64_t out_features_ = 0;
  int num_segments_ = 1;
  int64_t bytes_ = 0;
  std::vector<PackedCodes> parts_;
  std::shared_ptr<std::byte> data_;
  std::vector<float> bias_;
};

// Computes params.y. REQUIRES: params.weight is a CpuQuantizedLinear, packed with kernels.lanes.
void QuantizedLinear(const LinearParams& params,
                     InputType input_type,
                     const QuantizedKernels& kernels,
                     ThreadTeam& team);

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_QUANTIZED_LINEAR_H_
