// Paged attention on the CPU, for prefill, chunked prefill and decode. kernels/api/attention.h is
// the contract.
//
// A query's result is always computed in this order, regardless of the rest of the batch:
//   score     One fp32 accumulator per (query, position) adds the products of q and k, dims
//             ascending. The sum is multiplied by the key's scale, if the cache has scales, and
//             then by params.scale. With ALiBi a fused multiply-add then adds slope * distance.
//   chunk     A chunk has 256 positions and begins at a multiple of 256. Weights are exp(score -
//             maximum), by the polynomial of the Simd struct. The weights are summed per lane of a
//             vector, ascending, then over all lanes. If the cache has scales, each weight is then
//             multiplied by the scale of its value. Weighted values are added one position after
//             another.
//   result    Chunks are merged in ascending order. The weighted values are divided by the sum of
//             the weights at the end.
//
// PagedAttentionAvx512Bf16 uses the bf16 dot-product instruction for a bf16 cache. It rounds
// queries and weights to bf16 (to nearest even). An accumulator adds pairs (2i, 2i + 1) of dims, or
// of positions, in ascending order. For caches of other types it calls PagedAttentionAvx512.
//
// PagedAttentionAmx rounds in the same way, and uses the tile instruction of AMX. The instruction
// takes 32 dims, or 32 positions of a chunk, at a time (linear.h gives the order of its additions).
// A position that the query does not attend to counts as weight 0 times value 0. Denormals count as
// zero. Tasks of few (query, head) pairs use vector instructions, but add in the same order. In
// place of exp, PagedAttentionAmx computes the softmax weights as 2^((score - max) * f), where f =
// params.scale / ln 2, by a separate polynomial (paged_attention_rounded_softmax.inl.h). REQUIRES:
// params.scale > 0.
//
// A position outside a query's range (causal, sliding window) takes no part in the query's result.
// The values of positions that no query of the task attends to are not read.
//
// Parallel over (sequence, KV head, tile of queries). If that would leave threads idle, tasks are
// also split by chunks; the part of a task that finishes last merges the results in order.
//
// Thread safety: one caller per team at a time.
// Cost:          2 * 2 * head_dim flops per (query, head, position); K and V are read once per task
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
