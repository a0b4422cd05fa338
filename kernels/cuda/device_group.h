// DeviceGroup is what ranks on different GPUs do together on their streams: a communicator of NCCL.
//
// Nothing here waits. Whoever begins a group or puts an operation on a stream polls until that is
// settled, before anything else is asked of the group or put on the stream. An operation is done
// when all ranks have come to it; when one never does, only the end of the group releases the
// stream.
//
// Thread safety: one caller at a time for one group. EndDeviceGroup may take long, and may be
// called
//                from a thread of its own then.
// Errors:        0, kNoNccl, kNcclError - ncclResult_t. A group that had an error is only ended.
// Determinism:   a sum has the same bits on all ranks. In which order it is taken is NCCL's affair.
// Source:        NVIDIA NCCL User Guide, "Fault Tolerance", "Creating a communicator with options".
#ifndef QUIRE_KERNELS_CUDA_DEVICE_GROUP_H_
#define QUIRE_KERNELS_CUDA_DEVICE_GROUP_H_

#include <cstdint>

#include "kernels/api/collective.h"
#include "kernels/cuda/gpu_ops.h"

namespace quire::gpu {

inline constexpr int kNoNccl = -3;
inline constexpr int kNcclError = -2000;

// What the ranks of a group share, as bytes; made by one of them.
struct DeviceGroupId {
  char bytes[128];
};

// Opens the library, which stays open, before anything else here is called. path: of the library,
// or null: the usual places, of which the emulated build has none. kNoNccl: it is not there, or
// lacks a function.
int OpenNccl(const char* path);

int MakeDeviceGroupId(DeviceGroupId* id);
// On the current device, which no other rank has. All ranks begin; null where that fails at once.
int BeginDeviceGroup(const DeviceGroupId& id, int32_t rank, int32_t size, void** group);
// Of the group and of all that was asked of it: whether it is settled, or the error that it had.
int PollDeviceGroup(void* group, bool* is_settled);
// Aborts what is under way and frees the group.
int EndDeviceGroup(void* group);

// count: of elements of dtype f32, bf16 or f16; of whole 4 bytes for kDisjoint.
int AllReduceOverGroup(
    void* group, void* data, int64_t count, DType dtype, Merge merge, Stream stream);
int SendToGroup(void* group, const float* data, int64_t count, int32_t to_rank, Stream stream);
// counts[rank] floats of each rank but 0, one rank's after another.
int ReceiveFromGroup(
    void* group, float* data, const int64_t* counts, int32_t num_ranks, Stream stream);

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_DEVICE_GROUP_H_
