// Linear is y = x W^T + bias with a fixed order of summation: each output element is a sum over k
// ascending in one fp32 accumulator, or up to eight such sums of equal segments of k, added as
// ((0+1)+(2+3))+((4+5)+(6+7)); the bias comes last. Neither the number of rows nor the number of
// threads changes a bit of the result.
//
// The weights must come from CpuPackedLinear::Pack with the PanelShape of the same path.
//
// LinearAvx512Bf16 multiplies bf16 weights by activations rounded to bf16 (to nearest even) with
// the bf16 dot-product instruction, twice the arithmetic per second of LinearAvx512; weights of
// other types are computed as by LinearAvx512. The accumulation order is fixed too, but the order
// within a pair of k is chosen by the instruction.
//
// LinearAmx does the same with the tile instructions of AMX (TDPBF16PS), in this order: for every
// 32 values of k, one sum adds the products of even k and another the products of odd k, both in
// ascending order by fused multiply-adds. Then even + odd is added to the accumulator. Denormals
// count as zero. A single row uses the same instructions as many rows.
//
// MlpAmx computes a gated MLP without writing the sums of gate and up to memory: it activates and
// rounds them in the cache, as the input of the next product. Returns false, without effect, for
// few rows, MLPs without a gate, weights of another type, and partial tiles.
//
// Thread safety: one caller at a time per team.
// Cost:          2 * num_tokens * in_features * out_features operations. Few rows read the weights
//                once, at memory speed; many rows run near the rate of the arithmetic units.
#ifndef QUIRE_KERNELS_CPU_LINEAR_H_
#define QUIRE_KERNELS_CPU_LINEAR_H_

#include "kernels/api/dense.h"
#include "kernels/cpu/packed_linear.h"
#include "kernels/cpu/thread_team.h"

namespace quire {

inline constexpr PanelShape kAvx512Panel = {.lanes = 16, .panel = 64};
// bf16_panel is 16, so that each operand of a bf16 tile instruction (16 columns, 32 values of k) is
// contiguous. In a wider panel its cache lines would fall into few sets of the first-level cache.
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
