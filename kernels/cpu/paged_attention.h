// Paged attention on the CPU, for prefill, chunked prefill and decode alike
// (kernels/api/attention.h is the contract).
//
// A query's result is always computed in this order, regardless of the rest of the batch:
//   score     of (query, position): one fp32 accumulator, dims ascending, then times the key's
//             scale, if the cache has one, then times params.scale; with ALiBi, a fused
//             multiply-add then adds slope * distance;
//   chunk     of 256 absolute positions: maximum; exp by the polynomial of the Simd struct; one
//             sum per lane of a vector, ascending, then the sum of all lanes; weights times the
//             values' scales, if any; weighted values one position after the other;
//   result    chunks merged in ascending order, divided by the sum at the end.
// PagedAttentionAvx512Bf16 computes from a bf16 cache with the bf16 dot-product instruction:
// queries and weights are rounded to bf16 (to nearest even); an accumulator adds pairs of dims, or
// of positions, (2i, 2i + 1) in ascending order. For caches of other types it calls
// PagedAttentionAvx512.
// PagedAttentionAmx rounds likewise, but computes with AMX's tile instruction, which takes 32 dims,
// or 32 positions of a chunk, at a time (linear.h gives the order of its additions). In a tile, a
// position that the query does not attend to has weight 0 and value 0. Denormals count as zero.
// Tasks of few rows use vector instructions in the same order. In place of exp, PagedAttentionAmx
// computes the softmax weights as 2^((score - max) * f), f = params.scale / ln 2, by a separate
// polynomial (paged_attention_rounded_softmax.inl.h). REQUIRES: scale > 0.
//
// A position outside a query's range (causal, sliding window) takes no part. The values of
// positions that no query of the task attends to are not read.
//
// Parallel over (sequence, KV head, tile of queries); if that leaves threads idle, also over
// chunks, whose partial results the last thread to finish merges in order.
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
