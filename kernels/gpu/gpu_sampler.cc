#include "kernels/gpu/gpu_sampler.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "common/base/math.h"
#include "common/base/status_macros.h"
#include "common/model/sampling_params.h"

namespace quire {
namespace {

constexpr int64_t kArrayAlignment = 16;

}  // namespace

GpuSampler::Layout GpuSampler::LayOut(int64_t num_rows,
                                      int64_t num_adjustments,
                                      int64_t top_logprobs_stride) {
  Layout at;
  auto place = [&at](int64_t count, size_t element_bytes) {
    const int64_t offset = at.bytes;
    at.bytes = RoundUp(at.bytes + count * static_cast<int64_t>(element_bytes), kArrayAlignment);
    return offset;
  };
  at.rows = place(num_rows, sizeof(gpu::SampleRow));
  at.adjustments = place(num_adjustments, sizeof(gpu::LogitAdjustment));
  at.tokens = place(num_rows, sizeof(TokenId));
  at.logprobs = place(num_rows, sizeof(float));
  at.finite = place(num_rows, sizeof(bool));
  at.top_logprobs = place(num_rows * top_logprobs_stride, sizeof(SampledLogprob));
  return at;
}

GpuSampler::GpuSampler(const gpu::GpuApi& api, gpu::Stream stream) : api_(api), stream_(stream) {
  Require(api_.create_event(&done_), "create event");
}

GpuSampler::~GpuSampler() { api_.destroy_event(done_); }

// Reserves enough memory for any single row. A row has at most vocab_size adjustments, because
// their tokens are distinct.
absl::Status GpuSampler::Reserve(int64_t vocab_size, int64_t max_rows) {
  const int64_t bytes = std::max(kUsualBytes, LayOut(1, vocab_size, kMaxLogprobs).bytes);
  QUIRE_RETURN_IF_ERROR(staging_.Reserve(bytes));
  QUIRE_RETURN_IF_ERROR(memory_.Reserve(bytes));
  const int64_t ahead_bytes = LayOut(max_rows, 0, 0).bytes;
  QUIRE_RETURN_IF_ERROR(ahead_staging_.Reserve(ahead_bytes));
  return ahead_memory_.Reserve(ahead_bytes);
}

bool GpuSampler::CanSampleAhead(std::span<const SamplingRow> rows) {
  return std::all_of(rows.begin(), rows.end(), [](const SamplingRow& row) {
    return !row.is_adjusted() && row.params->num_logprobs <= 0;
  });
}

void GpuSampler::WriteAhead(std::span<const SamplingRow> rows, int32_t num_padded, std::byte* to) {
  packer_.Pack({.num_rows = static_cast<int32_t>(rows.size()), .rows = rows.data()});
  auto* packed = reinterpret_cast<gpu::SampleRow*>(to);
  const auto end = std::copy(packer_.rows().begin(), packer_.rows().end(), packed);
  std::fill(end, packed + num_padded, gpu::SampleRow{});
}

void GpuSampler::EnqueueAhead(float* logits,
                              int32_t vocab_size,
                              int32_t num_padded,
                              const std::byte* on_device) {
  const Layout at = LayOut(num_padded, 0, 0);
  auto* device = static_cast<std::byte*>(ahead_memory_.data());
  Require(api_.sample({.num_rows = num_padded,
                       .vocab_size = vocab_size,
                       .row_stride = vocab_size,
                       .logits = logits,
                       .token_ids = reinterpret_cast<TokenId*>(device + at.tokens),
                       .logprobs = reinterpret_cast<float*>(device + at.logprobs),
                       .finite = reinterpret_cast<bool*>(device + at.finite)},
                      {.rows = reinterpret_cast<const gpu::SampleRow*>(on_device)},
                      stream_),
          "sample");
  Require(api_.copy_to_host(ahead_staging_.data() + at.tokens,
                            device + at.tokens,
                            static_cast<size_t>(at.bytes - at.tokens),
                            stream_),
          "download tokens");
}

void GpuSampler::FinishAhead(const SampleParams& params, int32_t num_padded) {
  Require(api_.synchronize_event(done_), "step");
  ReadOutputs(params, LayOut(num_padded, 0, 0), ahead_staging_.data());
}

int64_t GpuSampler::NumAdjustments(int32_t first, int32_t count) const {
  const auto& rows = packer_.rows();
  const gpu::SampleRow& last = rows[static_cast<size_t>(first + count - 1)];
  return last.first_adjustment + last.num_adjustments -
         rows[static_cast<size_t>(first)].first_adjustment;
}

int32_t GpuSampler::NumRowsThatFit(int32_t first, int64_t top_logprobs_stride) const {
  const auto num_rows = static_cast<int32_t>(packer_.rows().size());
  const auto fits = [&](int32_t count) {
    return LayOut(count, NumAdjustments(first, count), top_logprobs_stride).bytes <=
           memory_.capacity_bytes();
  };
  int32_t count = 1;
  while (first + count < num_rows && fits(count + 1)) {
    ++count;
  }
  return count;
}

void GpuSampler::Sample(const SampleParams& params) {
  packer_.Pack(params);
  RequireMemory(Reserve(params.vocab_size, 0));
  for (int32_t first = 0; first < params.num_rows;) {
    SampleParams pass = params;
    pass.num_rows = NumRowsThatFit(first, params.top_logprobs_stride);
    pass.logits = params.logits + first * params.row_stride;
    pass.rows = params.rows + first;
    pass.token_ids = params.token_ids + first;
    pass.logprobs = params.logprobs + first;
    pass.finite = params.finite + first;
    pass.top_logprobs = params.top_logprobs + first * params.top_logprobs_stride;
    SamplePass(pass, first);
    first += pass.num_rows;
  }
}

void GpuSampler::SamplePass(const SampleParams& params, int32_t first) {
  const int64_t num_adjustments = NumAdjustments(first, params.num_rows);
  const Layout at = LayOut(params.num_rows, num_adjustments, params.top_logprobs_stride);
  std::byte* host = staging_.data();
  auto* device = static_cast<std::byte*>(memory_.data());
  auto* rows = reinterpret_cast<gpu::SampleRow*>(host + at.rows);
  std::copy_n(packer_.rows().begin() + first, params.num_rows, rows);
  const int32_t first_adjustment = rows[0].first_adjustment;
  for (int32_t row = 0; row < params.num_rows; ++row) {
    rows[row].first_adjustment -= first_adjustment;
  }
  std::copy_n(packer_.adjustments().begin() + first_adjustment,
              num_adjustments,
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
  // An event suffices, because no caller relies on this function to synchronize the stream.
  Require(api_.record_event(done_, stream_), "record event");
  Require(api_.synchronize_event(done_), "step");
  ReadOutputs(params, at, staging_.data());
}

void GpuSampler::ReadOutputs(const SampleParams& params, const Layout& at, const std::byte* host) {
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
