// DeviceGroup runs collectives of ranks on different GPUs on their streams: an NCCL communicator.
//
// No call waits for other ranks, except EndDeviceGroup. After BeginDeviceGroup or an operation, the
// caller polls until the group is settled, before it calls the group again or enqueues anything on
// the stream. An operation is done once all ranks have reached it. If a rank never does, only
// EndDeviceGroup releases the stream.
//
// Thread safety: one caller at a time for one group. EndDeviceGroup, which may take long, may be
//                called from another thread.
// Errors:        0, kNoNccl, kNcclError - ncclResult_t. After an error, call only EndDeviceGroup.
// Determinism:   a sum has the same bits on all ranks. NCCL chooses its order.
// Source:        NVIDIA NCCL User Guide, "Fault Tolerance", "Creating a communicator with options".
#ifndef QUIRE_KERNELS_CUDA_DEVICE_GROUP_H_
#define QUIRE_KERNELS_CUDA_DEVICE_GROUP_H_

#include <cstdint>

#include "kernels/api/collective.h"
#include "kernels/cuda/gpu_ops.h"

namespace quire::gpu {

inline constexpr int kNoNccl = -3;
inline constexpr int kNcclError = -2000;

// Identifies a group: one rank makes it and sends it to the others.
struct DeviceGroupId {
  char bytes[128];
};

// Opens libnccl, which stays open. Called before everything else here. path: the library's, or null
// for the usual places; the emulated build has none. Returns kNoNccl if the library is missing or
// lacks a function.
int OpenNccl(const char* path);

int MakeDeviceGroupId(DeviceGroupId* id);
// Joins the group with the current device, which no other rank may use. All ranks call it. *group
// is null if it fails at once.
int BeginDeviceGroup(const DeviceGroupId& id, int32_t rank, int32_t size, void** group);
// Returns whether all calls so far are settled, or the group's error.
int PollDeviceGroup(void* group, bool* is_settled);
// Aborts operations under way and frees the group.
int EndDeviceGroup(void* group);

// count: of elements of dtype f32, bf16 or f16; for kDisjoint a multiple of 4 bytes in all.
int AllReduceOverGroup(
    void* group, void* data, int64_t count, DType dtype, Merge merge, Stream stream);
int SendToGroup(void* group, const float* data, int64_t count, int32_t to_rank, Stream stream);
// Receives counts[rank] floats from every rank except 0, one rank's after another.
int ReceiveFromGroup(
    void* group, float* data, const int64_t* counts, int32_t num_ranks, Stream stream);

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_DEVICE_GROUP_H_
