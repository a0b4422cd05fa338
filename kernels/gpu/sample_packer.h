// SamplePacker converts the sampling parameters of a step's rows to the sampling kernel's input:
// one SampleRow per row, and one LogitAdjustment for each token whose logit changes before
// sampling.
//
// Thread safety: one caller at a time.
// Cost:          O(rows), plus O(n log n) for the n tokens of rows with penalties, bias or bans.
#ifndef QUIRE_KERNELS_GPU_SAMPLE_PACKER_H_
#define QUIRE_KERNELS_GPU_SAMPLE_PACKER_H_

#include <vector>

#include "kernels/api/sampling.h"
#include "kernels/cuda/gpu_ops.h"

namespace quire {

class SamplePacker {
 public:
  void Pack(const SampleParams& params);

  const std::vector<gpu::SampleRow>& rows() const { return rows_; }
  const std::vector<gpu::LogitAdjustment>& adjustments() const { return adjustments_; }

 private:
  void PackRow(const SamplingRow& row);
  void AppendAdjustments(const SamplingRow& row);

  std::vector<gpu::SampleRow> rows_;
  std::vector<gpu::LogitAdjustment> adjustments_;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_SAMPLE_PACKER_H_
