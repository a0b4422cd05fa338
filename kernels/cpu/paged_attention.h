// Paged attention on the CPU, for prefill, chunked prefill and decode alike
// (kernels/api/attention.h is the contract).
//
// How a query's result comes about, in this order and no other, whatever runs beside it:
//   score     of (query, position): one fp32 accumulator, dims ascending, then times the key's
//   scale
//             where keys have one, then times scale; with ALiBi, that fused with slope * distance;
//   chunk     of 256 absolute positions: maximum, exp by the polynomial of the Simd struct, sum
//             over positions 256k + lane, + lanes, ... and then across the lanes; weights times the
//             values' scales where there are any; weighted values one position after the other;
//   result    chunks merged in ascending order, divided by the sum at the end.
// PagedAttentionAvx512Bf16 computes from a bf16 cache with the bf16 dot-product instruction:
// queries and weights are rounded to bf16 (to nearest even); an accumulator takes dims, and
// positions, two by two in ascending order, from an even one on. From other caches it is
// PagedAttentionAvx512.
// PagedAttentionAmx does so with the tile instruction of AMX, in its order (linear.h): dims, and
// positions of a chunk, 32 by 32. A position of those that a query does not attend to counts as
// zero times zero, denormals count as zero. Few rows take vector instructions in the same order.
// Its weights are 2^(score * f - max * f) with f = scale / ln 2, fused, by a polynomial of its own
// (paged_attention_rounded_softmax.inl.h). REQUIRES: scale > 0.
//
// A position outside a query's range (causal, sliding window) takes part in none of it, and memory
// of positions that no query of the task may see is not read as a value.
//
// Parallel over (sequence, KV head, tile of queries); where that leaves threads idle also over
// chunks, whose partial results are then merged by the thread that finishes last, in order.
//
// Thread safety: one caller per team at a time.
// Cost:          2 * 2 * head_dim flops per (query head, position); K and V are read once per task
//                of up to kTaskRows (query, head) pairs. Allocates nothing in steady use.
#ifndef QUIRE_KERNELS_CPU_PAGED_ATTENTION_H_
#define QUIRE_KERNELS_CPU_PAGED_ATTENTION_H_

#include "kernels/api/attention.h"
#include "kernels/cpu/thread_team.h"

namespace quire {

void PagedAttentionAmx(const PagedAttentionParams& params, ThreadTeam& team);
void PagedAttentionAvx512(const PagedAttentionParams& params, ThreadTeam& team);
void PagedAttentionAvx512Bf16(const PagedAttentionParams& params, ThreadTeam& team);
void PagedAttentionAvx2(const PagedAttentionParams& params, ThreadTeam& team);
void PagedAttentionPortable(const PagedAttentionParams& params, ThreadTeam& team);

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_PAGED_ATTENTION_H_
