// FlashInfer's paged prefill on wgmma, for compute capability 9.0.
#include "tests/gpu/flashinfer_peer.h"

// FLASHINFER_PAGE_TOKENS, from make_peers.sh, names the tokens of a block in FlashInfer.
#include <flashinfer/attention/hopper/default_params.cuh>
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>
#include <flashinfer/attention/scheduler.cuh>

namespace quire::gpu {
namespace {

namespace fi = flashinfer;
using Element = cutlass::bfloat16_t;
using Params = fi::BatchPrefillPagedParams<Element, Element, Element, int32_t>;

class FlashInferPrefill : public Peer {
 public:
  explicit FlashInferPrefill(const PeerBatch& batch) : batch_(batch), memory_(batch) {}

  int Plan() {
    if (memory_.error() != 0) {
      return memory_.error();
    }
    std::vector<int32_t> starts(batch_.query_start, batch_.query_start + batch_.num_seqs + 1);
    std::vector<int32_t> lengths(batch_.seq_lens, batch_.seq_lens + batch_.num_seqs);
    batch_.query_start = nullptr;
    batch_.seq_lens = nullptr;
    num_tokens_ = starts.back();
    const auto head_dim = static_cast<uint32_t>(batch_.head_dim);
    int error = fi::PrefillSM90Plan<int32_t>(memory_.floats(),
                                             PeerMemory::kFloatBytes,
                                             memory_.ints(),
                                             memory_.pinned(),
                                             PeerMemory::kIntBytes,
                                             plan_,
                                             starts.data(),
                                             memory_.host_page_starts(),
                                             lengths.data(),
                                             static_cast<uint32_t>(num_tokens_),
                                             static_cast<uint32_t>(batch_.num_seqs),
                                             static_cast<uint32_t>(batch_.num_heads),
                                             static_cast<uint32_t>(batch_.num_kv_heads),
                                             head_dim,
                                             head_dim,
                                             static_cast<uint32_t>(batch_.block_size_tokens),
                                             /*causal=*/true,
                                             /*enable_cuda_graph=*/false,
                                             sizeof(Element),
                                             /*stream=*/nullptr);
    if (error == 0) {
      error = cudaStreamSynchronize(nullptr);
    }
    // For more than 4096 items per head FlashInfer uses another kernel, which is not compiled.
    return error == 0 && plan_.same_schedule_for_all_heads ? kPeerUnsupported : error;
  }

  int Run(const PeerCall& call, void* stream) override {
    switch (batch_.head_dim) {
      case 64:
        return RunHeadDim<64>(call, stream);
      case 128:
        return RunHeadDim<128>(call, stream);
      default:
        return RunHeadDim<256>(call, stream);
    }
  }

 private:
  int32_t* At(int64_t offset) const {
    return reinterpret_cast<int32_t*>(static_cast<char*>(memory_.ints()) + offset);
  }

  Params ParamsOf(const PeerCall& call) const {
    Params params = {};
    params.q_ptr = static_cast<Element*>(const_cast<void*>(call.q));
    params.k_ptr = static_cast<Element*>(const_cast<void*>(call.keys));
    params.v_ptr = static_cast<Element*>(const_cast<void*>(call.values));
    params.o_ptr = static_cast<Element*>(call.out);
    params.qo_tile_indices = At(plan_.qo_tile_indices_offset);
    params.qo_indptr = At(plan_.qo_indptr_offset);
    params.kv_indptr = At(plan_.kv_indptr_offset);
    params.kv_indices = const_cast<int32_t*>(call.block_tables);
    params.qo_lens = At(plan_.qo_len_offset);
    params.kv_lens = At(plan_.kv_len_offset);
    params.head_indices = At(plan_.head_indices_offset);
    params.work_indptr = At(plan_.work_indptr_offset);
    params.batch_indices = At(plan_.batch_indices_offset);
    params.additional_params.sm_scale = batch_.scale;
    params.q_stride_n = batch_.q_row_stride;
    params.q_stride_h = batch_.head_dim;
    params.o_stride_n = int64_t{batch_.num_heads} * batch_.head_dim;
    params.o_stride_h = batch_.head_dim;
    params.k_stride_n = batch_.head_dim;
    params.v_stride_n = batch_.head_dim;
    params.k_stride_h = batch_.head_stride;
    params.v_stride_h = batch_.head_stride;
    params.k_page_stride = batch_.block_stride;
    params.v_page_stride = batch_.block_stride;
    params.nnz_qo = num_tokens_;
    params.num_qo_heads = batch_.num_heads;
    params.num_kv_heads = batch_.num_kv_heads;
    params.group_size = batch_.num_heads / batch_.num_kv_heads;
    params.FLASHINFER_PAGE_TOKENS = batch_.block_size_tokens;
    params.window_left = -1;
    params.causal = true;
    return params;
  }

  template <uint32_t kHeadDim>
  int RunHeadDim(const PeerCall& call, void* stream) {
    Params params = ParamsOf(call);
    return fi::BatchPrefillWithPagedKVCacheDispatched<kHeadDim,
                                                      kHeadDim,
                                                      fi::MaskMode::kCausal,
                                                      false,
                                                      false,
                                                      fi::StandardAttention>(
        params, /*enable_pdl=*/false, static_cast<cudaStream_t>(stream));
  }

  PeerBatch batch_;
  PeerMemory memory_;
  fi::PrefillPlanSM90Info plan_;
  int32_t num_tokens_ = 0;
};

}  // namespace

std::unique_ptr<Peer> MakeFlashInferPrefill(const PeerBatch& batch, int* error) {
  if (batch.head_dim != 64 && batch.head_dim != 128 && batch.head_dim != 256) {
    *error = kPeerUnsupported;
    return nullptr;
  }
  auto peer = std::make_unique<FlashInferPrefill>(batch);
  *error = peer->Plan();
  return *error == 0 ? std::move(peer) : nullptr;
}

}  // namespace quire::gpu
