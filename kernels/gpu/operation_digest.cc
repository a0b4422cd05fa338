#include "kernels/gpu/operation_digest.h"

namespace quire {

void OperationDigest::AddField(const GpuLinear* linear) {
  if (linear == nullptr) {
    AddFields(static_cast<const void*>(nullptr));
    return;
  }
  AddFields(linear->weight(),
            static_cast<const void*>(linear->scales()),
            linear->bias(),
            linear->in_features(),
            linear->out_features());
}

void OperationDigest::AddField(const MatrixView& matrix) {
  const auto& [data, format, rows, cols, skipped_cols] = matrix;
  AddFields(data, format, rows, cols, skipped_cols);
}

void OperationDigest::AddField(const KvCacheLayout& layout) {
  const auto& [num_layers,
               num_kv_heads,
               head_dim,
               block_size_tokens,
               dtype,
               row_order,
               block_stride,
               layer_stride,
               head_stride,
               value_offset,
               key_slot_stride,
               key_dim_stride,
               value_slot_stride,
               key_scale_offset,
               value_scale_offset] = layout;
  AddFields(num_layers,
            num_kv_heads,
            head_dim,
            block_size_tokens,
            dtype,
            row_order,
            block_stride,
            layer_stride,
            head_stride,
            value_offset,
            key_slot_stride,
            key_dim_stride,
            value_slot_stride,
            key_scale_offset,
            value_scale_offset);
}

void OperationDigest::AddField(const KvCacheView& cache) {
  const auto& [base, num_blocks, layout, windows] = cache;
  AddFields(static_cast<const void*>(base), num_blocks, layout, windows);
}

void OperationDigest::AddField(std::span<const int64_t> numbers) {
  AddField(numbers.size());
  for (const int64_t number : numbers) {
    AddField(number);
  }
}

void OperationDigest::Add(const EmbeddingParams& params) {
  const auto& [num_tokens,
               token_ids,
               table,
               packed_table,
               first_token,
               position_table,
               positions,
               position_offset,
               out_dtype,
               out] = params;
  AddFields(Kind::kEmbed,
            num_tokens,
            static_cast<const void*>(token_ids),
            table,
            static_cast<const void*>(packed_table),
            first_token,
            position_table,
            static_cast<const void*>(positions),
            position_offset,
            out_dtype,
            static_cast<const void*>(out));
}

void OperationDigest::Add(const NormParams& params) {
  const auto& [kind, num_tokens, width, residual, delta, weight, bias, eps, out, out_f32] = params;
  AddFields(Kind::kNorm,
            kind,
            num_tokens,
            width,
            static_cast<const void*>(residual),
            delta,
            static_cast<const void*>(weight),
            static_cast<const void*>(bias),
            eps,
            static_cast<const void*>(out),
            static_cast<const void*>(out_f32));
}

void OperationDigest::Add(const LinearParams& params) {
  const auto& [num_tokens, x, y, weight, f32_out] = params;
  AddFields(Kind::kLinear,
            num_tokens,
            x,
            static_cast<const void*>(y),
            static_cast<const GpuLinear*>(weight),
            f32_out);
}

void OperationDigest::Add(const ActivationParams& params) {
  const auto& [kind, gated, num_tokens, width, in, out] = params;
  AddFields(Kind::kActivate, kind, gated, num_tokens, width, in, static_cast<const void*>(out));
}

void OperationDigest::Add(const PrepareAttentionParams& params) {
  const auto& [num_tokens,
               num_heads,
               layer,
               qkv,
               q_norm,
               k_norm,
               norm_eps,
               rope_cos,
               rope_sin,
               positions,
               slot_mapping,
               cache,
               k_scale,
               v_scale] = params;
  AddFields(Kind::kPrepareAttention,
            num_tokens,
            num_heads,
            layer,
            static_cast<const void*>(qkv),
            static_cast<const void*>(q_norm),
            static_cast<const void*>(k_norm),
            norm_eps,
            static_cast<const void*>(rope_cos),
            static_cast<const void*>(rope_sin),
            static_cast<const void*>(positions),
            static_cast<const void*>(slot_mapping),
            cache,
            k_scale,
            v_scale);
}

void OperationDigest::Add(const PagedAttentionParams& params) {
  const auto& [num_seqs,
               num_heads,
               layer,
               q,
               q_row_stride,
               out,
               scale,
               sliding_window,
               soft_cap,
               alibi_slopes,
               sinks,
               query_start,
               seq_lens,
               block_tables,
               max_blocks_per_seq,
               first_places,
               cache,
               k_scale,
               v_scale] = params;
  AddFields(Kind::kPagedAttention,
            num_seqs,
            num_heads,
            layer,
            q,
            q_row_stride,
            static_cast<const void*>(out),
            scale,
            sliding_window,
            soft_cap,
            static_cast<const void*>(alibi_slopes),
            static_cast<const void*>(sinks),
            static_cast<const void*>(query_start),
            static_cast<const void*>(seq_lens),
            static_cast<const void*>(block_tables),
            max_blocks_per_seq,
            static_cast<const void*>(first_places),
            cache,
            k_scale,
            v_scale);
}

void OperationDigest::Add(const AllReduceParams& params) {
  const auto& [num_rows, width, merge, dtype, data, bias] = params;
  AddFields(Kind::kAllReduce,
            num_rows,
            width,
            merge,
            dtype,
            static_cast<const void*>(data),
            static_cast<const void*>(bias));
}

// Leaves out num_candidates, because the GPU backend ignores it: it gathers whole rows.
void OperationDigest::Add(const GatherParams& params) {
  const auto& [num_rows, widths, num_candidates, part, whole] = params;
  static_cast<void>(num_candidates);
  AddFields(Kind::kGather,
            num_rows,
            widths,
            static_cast<const void*>(part),
            static_cast<const void*>(whole));
}

}  // namespace quire
