// FlashInfer's batch attention on mma, with tiles of up to 64 rows of query heads and tokens.
// FlashInfer's Python package uses it for decode of grouped heads (use_tensor_cores).
#include "tests/gpu/flashinfer_peer.h"

#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <flashinfer/attention/variants.cuh>

namespace quire::gpu {
namespace {

namespace fi = flashinfer;
using Element = __nv_bfloat16;
using Params = fi::BatchPrefillPagedParams<Element, Element, Element, int32_t>;
using Variant = fi::DefaultAttention<false, false, false, false>;

constexpr uint32_t kHeadDim = 128;

class FlashInferDecode : public Peer {
 public:
  explicit FlashInferDecode(const PeerBatch& batch) : batch_(batch), memory_(batch) {}

  int Plan() {
    if (memory_.error() != 0) {
      return memory_.error();
    }
    std::vector<int32_t> starts(batch_.query_start, batch_.query_start + batch_.num_seqs + 1);
    batch_.query_start = nullptr;
    batch_.seq_lens = nullptr;
    const auto num_rows = static_cast<uint32_t>(starts.back());
    int error = fi::PrefillPlan<int32_t>(memory_.floats(),
                                         PeerMemory::kFloatBytes,
                                         memory_.ints(),
                                         memory_.pinned(),
                                         PeerMemory::kIntBytes,
                                         plan_,
                                         starts.data(),
                                         memory_.host_page_starts(),
                                         num_rows,
                                         static_cast<uint32_t>(batch_.num_seqs),
                                         static_cast<uint32_t>(batch_.num_heads),
                                         static_cast<uint32_t>(batch_.num_kv_heads),
                                         kHeadDim,
                                         kHeadDim,
                                         static_cast<uint32_t>(batch_.block_size_tokens),
                                         /*enable_cuda_graph=*/false,
                                         sizeof(Element),
                                         /*window_left=*/-1,
                                         /*fixed_split_size=*/-1,
                                         /*disable_split_kv=*/false,
                                         /*num_colocated_ctas=*/0,
                                         /*uniform_q_len=*/0,
                                         /*fixed_uniform_q_len=*/false,
                                         /*stream=*/nullptr);
    if (error == 0) {
      error = cudaStreamSynchronize(nullptr);
    }
    const bool has_tile = plan_.cta_tile_q == 16 || plan_.cta_tile_q == 64;
    return error != 0 || has_tile ? error : kPeerUnsupported;
  }

  int Run(const PeerCall& call, void* stream) override {
    return plan_.cta_tile_q == 16 ? RunTile<16>(call, stream) : RunTile<64>(call, stream);
  }

 private:
  template <typename T>
  T* At(void* base, int64_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(base) + offset);
  }

  Params ParamsOf(const PeerCall& call) const {
    const int64_t strides[] = {batch_.block_stride, batch_.head_stride, kHeadDim};
    const fi::paged_kv_t<Element, int32_t> pages(
        static_cast<uint32_t>(batch_.num_kv_heads),
        static_cast<uint32_t>(batch_.block_size_tokens),
        kHeadDim,
        static_cast<uint32_t>(batch_.num_seqs),
        fi::QKVLayout::kHND,
        static_cast<Element*>(const_cast<void*>(call.keys)),
        static_cast<Element*>(const_cast<void*>(call.values)),
        strides,
        const_cast<int32_t*>(call.block_tables),
        memory_.page_starts(),
        memory_.last_page_tokens());
    Params params(static_cast<Element*>(const_cast<void*>(call.q)),
                  pages,
                  /*maybe_custom_mask=*/nullptr,
                  memory_.query_starts(),
                  /*maybe_mask_indptr=*/nullptr,
                  /*maybe_q_rope_offset=*/nullptr,
                  static_cast<Element*>(call.out),
                  /*lse=*/nullptr,
                  /*maybe_alibi_slopes=*/nullptr,
                  static_cast<uint32_t>(batch_.num_heads),
                  static_cast<int32_t>(batch_.q_row_stride),
                  kHeadDim,
                  /*window_left=*/-1,
                  /*logits_soft_cap=*/0.0F,
                  batch_.scale,
                  /*rope_scale=*/1.0F,
                  /*rope_theta=*/1e4F);
    void* ints = memory_.ints();
    params.request_indices = At<int32_t>(ints, plan_.request_indices_offset);
    params.qo_tile_indices = At<int32_t>(ints, plan_.qo_tile_indices_offset);
    params.kv_tile_indices = At<int32_t>(ints, plan_.kv_tile_indices_offset);
    params.o_indptr = At<int32_t>(ints, plan_.o_indptr_offset);
    params.kv_chunk_size_ptr = At<int32_t>(ints, plan_.kv_chunk_size_ptr_offset);
    if (plan_.split_kv) {
      params.merge_indptr = At<int32_t>(ints, plan_.merge_indptr_offset);
    }
    params.padded_batch_size = static_cast<uint32_t>(plan_.padded_batch_size);
    params.max_total_num_rows = static_cast<uint32_t>(plan_.total_num_rows);
    params.partition_kv = plan_.split_kv;
    return params;
  }

  template <uint32_t kTile>
  int RunTile(const PeerCall& call, void* stream) {
    Element* partials = nullptr;
    float* states = nullptr;
    if (plan_.split_kv) {
      partials = At<Element>(memory_.floats(), plan_.v_offset);
      states = At<float>(memory_.floats(), plan_.s_offset);
    }
    return fi::BatchPrefillWithPagedKVCacheDispatched<true,
                                                      kTile,
                                                      kHeadDim,
                                                      kHeadDim,
                                                      fi::PosEncodingMode::kNone,
                                                      false,
                                                      fi::MaskMode::kCausal,
                                                      false,
                                                      Variant,
                                                      Params>(
        ParamsOf(call), partials, states, /*enable_pdl=*/false, static_cast<cudaStream_t>(stream));
  }

  PeerBatch batch_;
  PeerMemory memory_;
  fi::PrefillPlanInfo plan_;
};

}  // namespace

std::unique_ptr<Peer> MakeFlashInferDecode(const PeerBatch& batch, int* error) {
  if (batch.head_dim != static_cast<int32_t>(kHeadDim)) {
    *error = kPeerUnsupported;
    return nullptr;
  }
  auto peer = std::make_unique<FlashInferDecode>(batch);
  *error = peer->Plan();
  return *error == 0 ? std::move(peer) : nullptr;
}

}  // namespace quire::gpu
