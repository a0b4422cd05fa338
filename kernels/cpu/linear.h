// Linear computes y = x W^T + bias in a fixed order of summation. k is the input dimension. Each
// output is a sum over k, in ascending order, in one fp32 accumulator. If k is cut into segments
// (LinearSource::num_segments), each segment has such a sum, and the sums are added as
// ((0+1)+(2+3))+((4+5)+(6+7)). The bias is added last. Neither the number of rows nor the number of
// threads changes a bit of the result.
//
// REQUIRES: the weights come from CpuPackedLinear::Pack with the PanelShape of the same instruction
// set (below).
//
// LinearAvx512Bf16 rounds activations to bf16 (to nearest even) and multiplies them by bf16 weights
// with the bf16 dot-product instruction, at twice the rate of LinearAvx512. For weights of other
// types it calls LinearAvx512. Its order of summation is fixed too; within each pair of values of
// k, the instruction defines the order.
//
// LinearAmx rounds in the same way, but multiplies with the tile instruction of AMX (TDPBF16PS).
// For weights of other types it calls LinearAvx512 too. For every 32 values of k, one sum adds the
// products of even k, and another sum those of odd k. Both use fused multiply-adds, in ascending
// order. Then even + odd is added to the accumulator. Denormals count as zero. A single row uses
// the same instructions as several rows.
//
// MlpAmx computes a gated MLP without writing the sums of gate and up to memory: it activates and
// rounds these sums in the cache, as the input of the next product. MlpAmx returns false, without
// effect, for few rows, MLPs without a gate, weights that are not bf16, and partial tiles.
//
// Thread safety: one caller at a time per team.
// Cost:          2 * num_tokens * in_features * out_features operations. A call with few rows reads
//                the weights once, at memory speed. With many rows, it runs near the rate of the
//                arithmetic units.
#ifndef QUIRE_KERNELS_CPU_LINEAR_H_
#define QUIRE_KERNELS_CPU_LINEAR_H_

#include "kernels/api/dense.h"
#include "kernels/cpu/packed_linear.h"
#include "kernels/cpu/thread_team.h"

namespace quire {

inline constexpr PanelShape kAvx512Panel = {.lanes = 16, .panel = 64};
// bf16_panel is 16, so that each operand of a bf16 tile instruction (16 columns, 32 values of k) is
// contiguous. In a wider panel the operand's cache lines would evict each other, because they fall
// into few sets of the first-level cache.
inline constexpr PanelShape kAmxPanel = {
    .lanes = 16, .panel = 64, .bf16_group = 32, .bf16_panel = 16};
inline constexpr PanelShape kAvx2Panel = {.lanes = 8, .panel = 16};
inline constexpr PanelShape kPortablePanel = {.lanes = 4, .panel = 8};

void LinearAmx(const LinearParams& params, ThreadTeam& team);
bool MlpAmx(const MlpParams& params, ThreadTeam& team);
void LinearAvx512(const LinearParams& params, ThreadTeam& team);
void LinearAvx512Bf16(const LinearParams& params, ThreadTeam& team);
void LinearAvx2(const LinearParams& params, ThreadTeam& team);
void LinearPortable(const LinearParams& params, ThreadTeam& team);

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_LINEAR_H_
