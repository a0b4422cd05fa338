#include "kernels/gpu/gpu_sampler.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "common/base/math.h"

namespace quire {
namespace {

constexpr int64_t kArrayAlignment = 16;

}  // namespace

GpuSampler::Layout GpuSampler::LayOut(const SampleParams& params) const {
  Layout at;
  auto place = [&at](size_t count, size_t element_bytes) {
    const int64_t offset = at.bytes;
    at.bytes = RoundUp(at.bytes + static_cast<int64_t>(count * element_bytes), kArrayAlignment);
    return offset;
  };
  const auto rows = static_cast<size_t>(params.num_rows);
  const size_t top = rows * static_cast<size_t>(params.top_logprobs_stride);
  at.rows = place(rows, sizeof(gpu::SampleRow));
  at.adjustments = place(packer_.adjustments().size(), sizeof(gpu::LogitAdjustment));
  at.tokens = place(rows, sizeof(TokenId));
  at.logprobs = place(rows, sizeof(float));
  at.finite = place(rows, sizeof(bool));
  at.top_logprobs = place(top, sizeof(SampledLogprob));
  return at;
}

void GpuSampler::Sample(const SampleParams& params) {
  packer_.Pack(params);
  const Layout at = LayOut(params);
  staging_.Reserve(at.bytes);
  // A changed address harms no graph, because sampling is never recorded.
  static_cast<void>(memory_.Reserve(at.bytes));
  std::byte* host = staging_.data();
  auto* device = static_cast<std::byte*>(memory_.data());
  const auto& rows = packer_.rows();
  const auto& adjustments = packer_.adjustments();
  std::copy(rows.begin(), rows.end(), reinterpret_cast<gpu::SampleRow*>(host + at.rows));
  std::copy(adjustments.begin(),
            adjustments.end(),
            reinterpret_cast<gpu::LogitAdjustment*>(host + at.adjustments));
  Require(api_.copy_to_device(device, host, static_cast<size_t>(at.tokens), stream_),
          "upload sampling parameters");
  SampleParams on_device = params;
  on_device.token_ids = reinterpret_cast<TokenId*>(device + at.tokens);
  on_device.logprobs = reinterpret_cast<float*>(device + at.logprobs);
  on_device.finite = reinterpret_cast<bool*>(device + at.finite);
  on_device.top_logprobs = reinterpret_cast<SampledLogprob*>(device + at.top_logprobs);
  Require(
      api_.sample(on_device,
                  {.rows = reinterpret_cast<const gpu::SampleRow*>(device + at.rows),
                   .adjustments = reinterpret_cast<gpu::LogitAdjustment*>(device + at.adjustments)},
                  stream_),
      "sample");
  Require(
      api_.copy_to_host(
          host + at.tokens, device + at.tokens, static_cast<size_t>(at.bytes - at.tokens), stream_),
      "download tokens");
  Require(api_.synchronize(stream_), "step");
  ReadOutputs(params, at);
}

void GpuSampler::ReadOutputs(const SampleParams& params, const Layout& at) {
  const std::byte* host = staging_.data();
  const auto* tokens = reinterpret_cast<const TokenId*>(host + at.tokens);
  const auto* logprobs = reinterpret_cast<const float*>(host + at.logprobs);
  const auto* finite = reinterpret_cast<const bool*>(host + at.finite);
  const auto* top_logprobs = reinterpret_cast<const SampledLogprob*>(host + at.top_logprobs);
  for (int32_t i = 0; i < params.num_rows; ++i) {
    params.token_ids[i] = tokens[i];
    params.finite[i] = finite[i];
    params.logprobs[i] = params.rows[i].params->num_logprobs >= 0 ? logprobs[i] : 0.0F;
    const int64_t first = i * params.top_logprobs_stride;
    const int32_t wanted = std::min(params.rows[i].params->num_logprobs, params.vocab_size);
    std::copy_n(top_logprobs + first, std::max(wanted, 0), params.top_logprobs + first);
  }
}

}  // namespace quire
