// The operations of GpuBackend. Each is enqueued on the stream or, while DigestOf computes a
// digest, only added to the digest.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/base/check.h"
#include "kernels/gpu/gpu_backend_class.h"

namespace quire {

void GpuBackend::Embed(const EmbeddingParams& params) {
  if (IsOnlyNamed(params)) {
    return;
  }
  Require(api_.embed(params, stream_), "embed");
}

void GpuBackend::Norm(const NormParams& params) {
  if (IsOnlyNamed(params)) {
    return;
  }
  Require(api_.norm(params, dtype_, stream_), "norm");
}

void GpuBackend::Linear(const LinearParams& params) {
  const auto& linear = static_cast<const GpuLinear&>(*params.weight);
  if (params.f32_out) {
    logits_ = {.data = static_cast<float*>(params.y),
               .num_rows = static_cast<int32_t>(params.num_tokens),
               .vocab_size = static_cast<int32_t>(linear.out_features())};
  }
  if (IsOnlyNamed(params) || params.num_tokens == 0) {
    return;
  }
  gpu::GemmArgs product = {.rows = params.num_tokens,
                           .out_features = linear.out_features(),
                           .in_features = linear.in_features(),
                           .x = params.x,
                           .weight = linear.weight(),
                           .bias = linear.bias(),
                           .y = params.y,
                           .dtype = dtype_,
                           .y_dtype = params.f32_out ? DType::kF32 : dtype_,
                           .weight_scales = linear.scales()};
  if (linear.scales() != nullptr) {
    QuantizeInput(&product);
  }
  if (nccl_ != nullptr) {
    bool is_planned = false;
    Require(api_.is_gemm_planned(gemm_, product, &is_planned), "product");
    if (!is_planned) {
      nccl_->Finish();  // planning waits for the device, which hangs if a rank is lost
    }
  }
  Require(api_.run_gemm(gemm_, product, stream_), "product");
}

void GpuBackend::QuantizeInput(gpu::GemmArgs* product) {
  const int64_t bytes = product->rows * product->in_features;
  const int64_t scale_bytes = product->rows * int64_t{sizeof(float)};
  GpuScratch& rows = memory_.fp8_rows();
  GpuScratch& scales = memory_.fp8_scales();
  if (bytes > rows.capacity_bytes() || scale_bytes > scales.capacity_bytes()) {
    // Only products outside of steps exceed the reserved memory (CoverStep). Drop the graphs, which
    // hold the old memory's addresses.
    graphs_.Clear();
    RequireMemory(rows.Reserve(bytes));
    RequireMemory(scales.Reserve(scale_bytes));
  }
  Require(api_.quantize_rows({.num_rows = product->rows,
                              .width = static_cast<int32_t>(product->in_features),
                              .in = product->x,
                              .dtype = dtype_,
                              .out = rows.data(),
                              .scales = static_cast<float*>(scales.data())},
                             stream_),
          "quantize rows");
  product->x = rows.data();
  product->x_scales = static_cast<const float*>(scales.data());
  product->dtype = DType::kF8E4M3;
}

void GpuBackend::Activate(const ActivationParams& params) {
  if (IsOnlyNamed(params)) {
    return;
  }
  Require(api_.activate(params, dtype_, stream_), "activation");
}

void GpuBackend::PrepareAttention(const PrepareAttentionParams& params) {
  if (IsOnlyNamed(params)) {
    return;
  }
  Require(api_.prepare_attention(params, dtype_, stream_), "prepare attention");
  last_prepared_ = {.qkv = params.qkv, .launch = launches_.value()};
}

void GpuBackend::PagedAttention(const PagedAttentionParams& params) {
  if (IsOnlyNamed(params)) {
    return;
  }
  const bool is_prepared =
      last_prepared_.qkv == params.q && last_prepared_.launch == launches_.value();
  for (size_t group = 0; group < step_.groups.size(); ++group) {
    const gpu::DecodePlan plan = decode_plans_.PlanOf(step_, group, params, is_prepared);
    Require(api_.decode(params, plan, dtype_, stream_), "decode attention");
  }
  if (step_.num_items > 0) {
    const gpu::PrefillPlan plan = {
        .items = step_.items, .num_items = step_.num_items, .next_item = memory_.next_item()};
    Require(api_.prefill(params, plan, dtype_, stream_), "prefill attention");
  }
}

void GpuBackend::CopyBlocks(const CopyBlocksParams& params) {
  QUIRE_CHECK(!digest_.has_value());
  constexpr auto kCopiesPerPass = size_t{StepMemory::kCopiesPerPass};
  RequireMemory(memory_.ReserveBlockPairs());
  for (size_t first = 0; first < params.src.size(); first += kCopiesPerPass) {
    const size_t count = std::min(kCopiesPerPass, params.src.size() - first);
    const auto src = params.src.subspan(first, count);
    const auto dst = params.dst.subspan(first, count);
    std::vector<BlockId> ids(src.begin(), src.end());
    ids.insert(ids.end(), dst.begin(), dst.end());
    const size_t bytes = ids.size() * sizeof(BlockId);
    Require(api_.copy_to_device(memory_.block_pairs(), ids.data(), bytes, stream_),
            "upload block copies");
    const auto* on_device = static_cast<const BlockId*>(memory_.block_pairs());
    Require(
        api_.copy_blocks(
            {.cache = params.cache, .src = {on_device, count}, .dst = {on_device + count, count}},
            stream_),
        "copy blocks");
  }
}

}  // namespace quire
