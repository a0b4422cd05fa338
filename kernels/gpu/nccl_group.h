// NcclGroup does what the ranks of a group do together on their GPUs, by NCCL: each operation is
// put on the stream and waits there for the other ranks.
//
// The host never waits for the stream without a way out: it asks whether the stream has come to its
// end, and meanwhile whether NCCL had an error and whether the host links of the ranks still stand.
// What fails there breaks the group on all ranks, and releases this one's stream by ending NCCL's
// communicator; a process in which that takes more than kMaxEnd ends itself. So whoever waits for
// the stream in another way calls Finish before.
//
// Thread safety: one caller at a time (the executor thread).
// Errors:        a group that breaks: see Communicator. A failing device, or an end that hangs,
// ends
//                the process, as in GpuBackend.
// Source:        NVIDIA NCCL User Guide, "Fault Tolerance".
#ifndef QUIRE_KERNELS_GPU_NCCL_GROUP_H_
#define QUIRE_KERNELS_GPU_NCCL_GROUP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

#include "common/base/clock.h"
#include "kernels/api/collective.h"
#include "kernels/collective/communicator.h"
#include "kernels/gpu/gpu_library.h"
#include "kernels/gpu/gpu_memory.h"

namespace quire {

class NcclGroup {
 public:
  static constexpr int64_t kMaxEnd = 2 * kNanosPerSecond;

  // All ranks call this at about the same time. Null where they cannot: one of them has no NCCL, or
  // two share a GPU. Errors: kUnavailable, reason GROUP_BROKEN, also after `timeout_ns`.
  static absl::StatusOr<std::unique_ptr<NcclGroup>> Join(const GpuLibrary& library,
                                                         gpu::Stream stream,
                                                         std::shared_ptr<Communicator> ranks,
                                                         int64_t timeout_ns);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // As KernelBackend's functions of these names. REQUIRES: no bias.
  void AllReduce(const AllReduceParams& params);
  void Gather(const GatherParams& params);
  // Waits until what was put on the stream is done, or the group is broken.
  void Finish();

 private:
  NcclGroup(const GpuLibrary& library, gpu::Stream stream, std::shared_ptr<Communicator> ranks);

  void Require(int error, const char* what) const { RequireGpu(api_, error, what); }
  absl::Status Connect(int64_t timeout_ns);
  // Of an operation that was put on the stream. Nothing else is put there before it is settled.
  void Settle(int error, const char* what);
  void ReceiveParts(const GatherParams& params);
  // Until NCCL is settled and is_done says so. Breaks the group when that is not to be.
  void WaitUntil(absl::FunctionRef<bool()> is_done, Instant deadline, const char* what);
  void Break(const char* what, const char* why);
  void End();

  const gpu::GpuApi& api_;
  const int32_t device_;
  const gpu::Stream stream_;
  const std::shared_ptr<Communicator> ranks_;
  void* group_ = nullptr;  // null once it has ended
  gpu::Event done_ = nullptr;
  int num_under_way_ = 0;
  GpuScratch parts_{api_};  // of the ranks, one after another
  std::vector<int64_t> counts_;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_NCCL_GROUP_H_
