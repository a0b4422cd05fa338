// GpuSampler turns rows of logits into tokens: it uploads the parameters in one copy, runs the
// sampling kernel, downloads the results in one copy and waits for that copy alone.
//
// Sampling can also be part of a step. The parameters are then uploaded with the step's inputs, and
// the kernel and the download are in the step's graph. This works only if no row has logit
// adjustments or asks for top log-probabilities. Padding rows are greedy, and their results are
// dropped.
//
// The sampler's memory has a fixed size, kUsualBytes for all but the largest vocabularies. Rows
// with penalties have an entry for each distinct token of their context, so many rows with long
// contexts may need more. Such rows are sampled in several passes. A row's tokens do not depend on
// the passes.
//
// Thread safety: one caller at a time (the executor thread).
#ifndef QUIRE_KERNELS_GPU_GPU_SAMPLER_H_
#define QUIRE_KERNELS_GPU_GPU_SAMPLER_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "kernels/api/sampling.h"
#include "kernels/cuda/gpu_api.h"
#include "kernels/gpu/gpu_memory.h"
#include "kernels/gpu/sample_packer.h"

namespace quire {

class GpuSampler {
 public:
  // Usual size of the sampler's device memory, and of its pinned memory. It suffices for 512 rows
  // that each have 2,000 distinct tokens.
  static constexpr int64_t kUsualBytes = int64_t{16} << 20;

  GpuSampler(const gpu::GpuApi& api, gpu::Stream stream);
  ~GpuSampler();
  GpuSampler(const GpuSampler&) = delete;
  GpuSampler& operator=(const GpuSampler&) = delete;

  // Allocates memory for Sample, which takes any number of rows of vocab_size logits, and for steps
  // that sample up to max_rows rows, padding included. Errors: kResourceExhausted, reason MEMORY.
  absl::Status Reserve(int64_t vocab_size, int64_t max_rows);

  // Returns the bytes that num_rows rows, padding included, add to a step's inputs.
  static int64_t AheadBytes(int64_t num_rows) {
    return num_rows * static_cast<int64_t>(sizeof(gpu::SampleRow));
  }
  // Returns whether these rows can be sampled as part of a step.
  static bool CanSampleAhead(std::span<const SamplingRow> rows);
  // Writes the parameters of the rows, then those of padding rows, to `to`: AheadBytes(num_padded)
  // bytes in all.
  void WriteAhead(std::span<const SamplingRow> rows, int32_t num_padded, std::byte* to);
  // Enqueues the sampling kernel and the download of its results; both may be recorded in a graph.
  // on_device: device copy of the bytes that WriteAhead wrote. logits: [num_padded, vocab_size].
  void EnqueueAhead(float* logits,
                    int32_t vocab_size,
                    int32_t num_padded,
                    const std::byte* on_device);
  // Must be called after the operations of EnqueueAhead, or a graph that contains them, were
  // enqueued.
  void MarkAhead() { Require(api_.record_event(done_, stream_), "record event"); }
  // Waits for the results of the operations before MarkAhead, and stores them. REQUIRES: the rows
  // are those of WriteAhead.
  void FinishAhead(const SampleParams& params, int32_t num_padded);

  // Blocks until the sampling, and everything enqueued on the stream before it, is done.
  void Sample(const SampleParams& params);

 private:
  // Byte offsets of the inputs and, behind them, of the outputs. They are the same in device memory
  // and in the host's copy.
  struct Layout {
    int64_t rows = 0;
    int64_t adjustments = 0;
    int64_t tokens = 0;  // the first output
    int64_t logprobs = 0;
    int64_t finite = 0;
    int64_t top_logprobs = 0;
    int64_t bytes = 0;
  };

  void Require(int error, const char* what) const { RequireGpu(api_, error, what); }
  static Layout LayOut(int64_t num_rows, int64_t num_adjustments, int64_t top_logprobs_stride);
  // Returns the number of adjustments of the packed rows [first, first + count).
  int64_t NumAdjustments(int32_t first, int32_t count) const;
  // Returns how many packed rows, starting with row `first`, fit into memory_ at once; at least 1.
  int32_t NumRowsThatFit(int32_t first, int64_t top_logprobs_stride) const;
  // Samples params.rows, which are the packed rows from `first` on.
  void SamplePass(const SampleParams& params, int32_t first);
  // Copies the results from `host`, where the outputs begin at offset at.tokens.
  static void ReadOutputs(const SampleParams& params, const Layout& at, const std::byte* host);

  const gpu::GpuApi& api_;
  const gpu::Stream stream_;
  SamplePacker packer_;
  PinnedScratch staging_{api_};
  GpuScratch memory_{api_};
  // Outputs of sampling that is part of a step.
  PinnedScratch ahead_staging_{api_};
  GpuScratch ahead_memory_{api_};
  gpu::Event done_ = nullptr;  // happens after the download of the last results
};

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_GPU_SAMPLER_H_
