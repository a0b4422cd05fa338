// GpuSampler turns rows of logits into tokens: it uploads the parameters in one copy, runs the
// sampling kernel, downloads the results in one copy and waits for that copy.
//
// Thread safety: one caller at a time (the executor thread).
#ifndef QUIRE_KERNELS_GPU_GPU_SAMPLER_H_
#define QUIRE_KERNELS_GPU_GPU_SAMPLER_H_

#include <cstdint>

#include "kernels/api/sampling.h"
#include "kernels/cuda/gpu_api.h"
#include "kernels/gpu/gpu_memory.h"
#include "kernels/gpu/sample_packer.h"

namespace quire {

class GpuSampler {
 public:
  GpuSampler(const gpu::GpuApi& api, gpu::Stream stream) : api_(api), stream_(stream) {}

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
  Layout LayOut(const SampleParams& params) const;
  void ReadOutputs(const SampleParams& params, const Layout& at);

  const gpu::GpuApi& api_;
  const gpu::Stream stream_;
  SamplePacker packer_;
  PinnedScratch staging_{api_};
  GpuScratch memory_{api_};
};

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_GPU_SAMPLER_H_
