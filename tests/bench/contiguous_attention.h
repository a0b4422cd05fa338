// Decode attention over plain arrays: the peer that paging is measured against. It knows nothing of
// blocks, tables or windows: a sequence's keys, and its values, begin at a pointer, and the next
// token is a stride further on. Keys are token-major, as kernels for contiguous caches want them.
//
// It gives the bits of PagedAttention on the same path and from a cache of the same type
// (kernels/cpu/paged_attention.h says in which order sums come about): a group of 16 keys is turned
// in registers on its way, which takes as many shuffles as widening them does. Where KV heads lie
// side by side a task reads all of them, so that memory is read in its order. While keys are read
// the values of the same tokens are fetched, while values are read the keys of the next chunk.
//
// Shapes:        as kernels/api/attention.h names them; each sequence has one query.
// Units:         strides in elements of dtype.
// Thread safety: one caller at a time per team.
// Cost:          as PagedAttention. Parallel over sequences, chunks and, where they lie apart, KV
//                heads; chunks are then merged in order. Allocates nothing in steady use.
// Source:        FlashAttention's kvcache kernel as vAttention uses it, Prabhu et al. 2024, 5.1.
#ifndef QUIRE_TESTS_BENCH_CONTIGUOUS_ATTENTION_H_
#define QUIRE_TESTS_BENCH_CONTIGUOUS_ATTENTION_H_

#include <cstdint>
#include <string_view>

#include "common/model/kv_cache_spec.h"
#include "kernels/cpu/thread_team.h"

namespace quire {

// REQUIRES: head_dim is a multiple of 8. The arrays can be read up to the next multiple of 16
// tokens; the values there do not change the output.
struct ContiguousAttentionParams {
  int32_t num_seqs = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  const float* q = nullptr;             // [num_seqs, num_heads * head_dim], rows q_row_stride apart
  int64_t q_row_stride = 0;             // elements
  float* out = nullptr;                 // [num_seqs, num_heads * head_dim], contiguous
  float scale = 1.0F;                   // of the scores, before softmax
  const int32_t* seq_lens = nullptr;    // [num_seqs], each at least 1
  const void* const* keys = nullptr;    // [num_seqs], of token 0 and KV head 0; dims side by side
  const void* const* values = nullptr;  // [num_seqs], likewise
  int64_t token_stride = 0;             // from a token to the next one, of keys and of values
  int64_t head_stride = 0;              // from a KV head to the next one
};

using ContiguousAttention = void (*)(const ContiguousAttentionParams& params, ThreadTeam& team);

// Returns the kernel that gives the bits of this path (KernelTable::isa). Returns nullptr if the
// path has no such kernel for the type. REQUIRES: the machine has the path's instructions.
ContiguousAttention FindContiguousAttention(std::string_view isa, DType dtype);

// ContiguousAttentionF32 computes from fp32, as paths with AVX-512 do. The other two compute from
// bf16, as avx512bf16 and as amx do.
void ContiguousAttentionF32(const ContiguousAttentionParams& params, ThreadTeam& team);
void ContiguousAttentionPairs(const ContiguousAttentionParams& params, ThreadTeam& team);
void ContiguousAttentionTileOrder(const ContiguousAttentionParams& params, ThreadTeam& team);

}  // namespace quire

#endif  // QUIRE_TESTS_BENCH_CONTIGUOUS_ATTENTION_H_
