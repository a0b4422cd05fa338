// NcclGroup runs the collectives of a group's ranks on their GPUs by NCCL. Each operation is
// enqueued on the stream and waits there for the other ranks.
//
// The host never blocks on the stream, because a lost rank would block the stream for ever. Instead
// the host polls the stream, NCCL's errors and the host links between the ranks. A failure breaks
// the group on all ranks, and ends NCCL's communicator to release this rank's stream. If ending
// the communicator takes more than kMaxEnd, the process ends. REQUIRES: the caller calls Finish
// before it waits for the stream in any other way.
//
// Operations can be recorded in a graph. A launched graph waits for the other ranks as its
// operations would, and a failure ends its wait in the same way. NCCL keeps a communicator while
// graphs refer to it, so before_end must drop these graphs. REQUIRES: the environment variable
// NCCL_GRAPH_REGISTER is 0, else NCCL may add in another order in graphs than outside.
//
// Thread safety: one caller at a time (the executor thread).
// Errors:        if the group breaks, see Communicator. A failing device ends the process, as in
//                GpuBackend. So does an NCCL communicator that takes longer than kMaxEnd to end.
// Source:        NVIDIA NCCL User Guide, "Fault Tolerance".
#ifndef QUIRE_KERNELS_GPU_NCCL_GROUP_H_
#define QUIRE_KERNELS_GPU_NCCL_GROUP_H_

#include <cstdint>
#include <functional>
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

  // All ranks call this at about the same time. `parts` is memory for the parts that rank 0
  // gathers; Gather enlarges it to ReceivedBytes if needed. REQUIRES: `parts` outlives the group.
  // Returns null if a rank has no NCCL or two ranks share a GPU. Errors: kUnavailable, reason
  // GROUP_BROKEN, if the group breaks or is not connected after `timeout_ns`.
  static absl::StatusOr<std::unique_ptr<NcclGroup>> Join(const GpuLibrary& library,
                                                         gpu::Stream stream,
                                                         std::shared_ptr<Communicator> ranks,
                                                         GpuScratch& parts,
                                                         std::function<void()> before_end,
                                                         int64_t timeout_ns);
  // Returns the bytes that rank 0 receives in a Gather. A row has whole_width floats; rank 0 itself
  // has own_width of them.
  static int64_t ReceivedBytes(int64_t num_rows, int64_t whole_width, int64_t own_width) {
    return num_rows * (whole_width - own_width) * int64_t{sizeof(float)};
  }
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // See KernelBackend::AllReduce and Gather. REQUIRES: AllReduceParams::bias is null.
  void AllReduce(const AllReduceParams& params);
  void Gather(const GatherParams& params);
  // Waits until the stream's operations are done or the group is broken. Does nothing during a
  // recording.
  void Finish();

  // Must be called when the stream's recording has begun. A failure before EndRecording breaks the
  // group on all ranks at once, but the communicator ends only in EndRecording.
  void BeginRecording() { is_recording_ = true; }
  // Returns whether the group is connected and unbroken. During a recording, true means that all
  // operations so far have been recorded.
  bool is_whole() const { return group_ != nullptr && !is_broken_; }
  // Must be called when the stream's recording has ended.
  void EndRecording();
  // Must be called after each launch of a graph of recorded operations.
  void CountLaunch() { ++num_under_way_; }

 private:
  NcclGroup(const GpuLibrary& library,
            gpu::Stream stream,
            std::shared_ptr<Communicator> ranks,
            GpuScratch& parts,
            std::function<void()> before_end);

  void Require(int error, const char* what) const { RequireGpu(api_, error, what); }
  absl::Status Connect(int64_t timeout_ns);
  // `error` is the result of the call that enqueued an NCCL operation. If `error` is not 0, breaks
  // the group. Else waits until NCCL has accepted the operation, because the next operation must
  // not be enqueued earlier.
  void Settle(int error, const char* what);
  void ReceiveParts(const GatherParams& params);
  // Waits until NCCL has accepted all operations (PollDeviceGroup) and is_done returns true. Breaks
  // the group on an error, if a rank is lost, or at the deadline.
  void WaitUntil(absl::FunctionRef<bool()> is_done, Instant deadline, const char* what);
  void Break(const char* what, const char* why);
  void End();

  const gpu::GpuApi& api_;
  const int32_t device_;
  const gpu::Stream stream_;
  const std::shared_ptr<Communicator> ranks_;
  const std::function<void()> before_end_;
  void* group_ = nullptr;  // NCCL's communicator; null before Connect and after End
  gpu::Event done_ = nullptr;
  int num_under_way_ = 0;
  bool is_recording_ = false;
  bool is_broken_ = false;  // the group broke during a recording (EndRecording)
  GpuScratch& parts_;       // on rank 0: the parts that Gather received, by rank
  std::vector<int64_t> counts_;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_NCCL_GROUP_H_
