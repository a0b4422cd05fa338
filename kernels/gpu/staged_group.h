// StagedGroup runs the collectives of a group's ranks through main memory: it copies from the
// device, adds up through a Communicator and copies back. This is slow but needs no NCCL, and ranks
// may share a GPU.
//
// Sums are fp32, in the order of kernels/api/collective.h; a sum of bf16 or f16 elements is rounded
// once, at the end.
//
// Thread safety: one caller at a time (the executor thread).
// Errors:        if the group breaks, see Communicator. A failing device ends the process, as in
//                GpuBackend.
// Cost:          each operation waits for the device, and copies twice over the device's bus.
#ifndef QUIRE_KERNELS_GPU_STAGED_GROUP_H_
#define QUIRE_KERNELS_GPU_STAGED_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/api/collective.h"
#include "kernels/collective/communicator.h"
#include "kernels/cuda/gpu_api.h"
#include "kernels/gpu/gpu_memory.h"

namespace quire {

class StagedGroup {
 public:
  StagedGroup(const gpu::GpuApi& api, gpu::Stream stream, std::shared_ptr<Communicator> ranks)
      : api_(api), stream_(stream), ranks_(std::move(ranks)) {}
  // Waits for the last copy.
  ~StagedGroup();
  StagedGroup(const StagedGroup&) = delete;
  StagedGroup& operator=(const StagedGroup&) = delete;

  // See KernelBackend::AllReduce and Gather. REQUIRES: AllReduceParams::bias is null.
  void AllReduce(const AllReduceParams& params);
  void Gather(const GatherParams& params);

 private:
  void Require(int error, const char* what) const { RequireGpu(api_, error, what); }
  void Reserve(int64_t bytes);
  void Download(const void* device, int64_t bytes);
  void Upload(void* device, const std::byte* host, int64_t bytes);
  template <typename T>
  void AllReduceAs(size_t elements);

  const gpu::GpuApi& api_;
  const gpu::Stream stream_;
  const std::shared_ptr<Communicator> ranks_;
  PinnedScratch staging_{api_};
  std::vector<float> sums_;  // fp32 copies of 16-bit elements
};

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_STAGED_GROUP_H_
