// CpuPackedLinear holds the weights of one linear layer in the order in which the CPU kernels read
// them: in panels of PanelShape::panel output columns. Within a panel, weights are in ascending
// order of k (the input dimension), so that a kernel reads them strictly forwards.
//
//   f32, f16   panel[p][k][column]
//   bf16       panel[p][k / 2][column][k % 2]: two values of k in each 32-bit lane. The bf16
//              dot-product instruction needs this order, which is also the cheapest to widen to
//              fp32.
//
// Columns beyond out_features are zero. The last panel is padded only to a multiple of `lanes`, so
// it may be narrower than the others. For bf16 every segment of k (LinearSource::num_segments) is
// padded with zeros to a multiple of `bf16_group`. Weights keep the type of their source, unless
// the parts of the source have different types: then all parts are widened to fp32.
//
// Thread safety: immutable after Pack.
#ifndef QUIRE_KERNELS_CPU_PACKED_LINEAR_H_
#define QUIRE_KERNELS_CPU_PACKED_LINEAR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/model/dtype.h"
#include "kernels/api/dense.h"
#include "kernels/cpu/cpu_linear.h"
#include "kernels/cpu/huge_arena.h"
#include "kernels/cpu/thread_team.h"

namespace quire {

// Sizes of the panels for one instruction set.
struct PanelShape {
  int32_t lanes = 0;       // fp32 columns in a vector
  int32_t panel = 0;       // columns in a panel, a multiple of lanes
  int32_t bf16_group = 2;  // segments of k of bf16 weights are padded to a multiple of this
  int32_t bf16_panel = 0;  // replaces `panel` for bf16 weights; 0: bf16 weights use `panel` too
};

class CpuPackedLinear final : public CpuLinear {
 public:
  // Packs the source's weights in the layout of `shape`, in memory from the arena. Errors:
  // kInvalidArgument if CheckLinearSource (kernels/api/linear_source.h) refuses the source;
  // kResourceExhausted if memory is lacking; errors of the source's reader. REQUIRES: no part is
  // quantized.
  static absl::StatusOr<std::unique_ptr<CpuPackedLinear>> Pack(const LinearSource& source,
                                                               PanelShape shape,
                                                               HugeArena& arena,
                                                               ThreadTeam& team);

  // Returns the number of bytes that Pack requests from the arena, or nullopt if the number
  // overflows. REQUIRES: CheckLinearSource accepts the source.
  static std::optional<int64_t> BytesFor(const LinearSource& source, PanelShape shape);

  bool is_quantized() const override { return false; }
  int64_t in_features() const override { return in_features_; }
  int64_t out_features() const override { return out_features_; }
  int64_t bytes() const override { return bytes_; }
  std::vector<std::span<const std::byte>> memory() const override {
    return {{data_.get(), static_cast<size_t>(bytes_)}, std::as_bytes(std::span(bias_))};
  }

  DType dtype() const { return dtype_; }
  PanelShape shape() const { return shape_; }
  int64_t num_panels() const { return num_panels_; }
  int num_segments() const { return num_segments_; }  // 1, 2, 4 or 8
  int64_t segment_length() const { return in_features_ / num_segments_; }
  int64_t padded_segment_length() const { return padded_segment_length_; }
  // Returns the number of stored columns of panel p, a multiple of lanes.
  int64_t panel_columns(int64_t p) const;
  const std::byte* panel_data(int64_t p) const;
  void WidenRow(int64_t row, float* out) const override;
  const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }

 private:
  // Computes the layout for a source. Pack allocates the memory.
  CpuPackedLinear(const LinearSource& source, PanelShape shape);
  std::optional<int64_t> WantedBytes() const;
  absl::Status PackPanels(const LinearSource& source, ThreadTeam& team);
  absl::Status PackPanel(const LinearSource& source, int64_t p, ThreadTeam& team, int thread);
  void ZeroFiller(int64_t p);
  // Writes the rows of `view` as columns of panel p, from `column` on.
  void PackRows(const MatrixView& view, int64_t p, int64_t column);

  int64_t in_features_ = 0;
  int64_t out_features_ = 0;
  int64_t bytes_ = 0;
  DType dtype_ = DType::kF32;
  PanelShape shape_;
  int64_t num_panels_ = 0;
  int num_segments_ = 1;
  int64_t padded_segment_length_ = 0;
  std::shared_ptr<std::byte> data_;
  std::vector<float> bias_;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_PACKED_LINEAR_H_
