// DeviceGroup is an NCCL communicator. It runs collectives of ranks on different GPUs.
//
// No call waits for other ranks, except EndDeviceGroup. After BeginDeviceGroup or an operation, the
// caller must call PollDeviceGroup until it sets *is_settled to true. Only then may the caller call
// the group again or enqueue anything on the stream. An operation cannot finish before all ranks
// have called the operation. If one rank never calls it, only EndDeviceGroup releases the stream.
//
// Thread safety: one caller at a time for one group. EndDeviceGroup can hang if another rank hangs,
//                so it may run on another thread than the earlier calls.
// Errors:        0, kNoNccl, kNcclError - ncclResult_t. After an error, call only EndDeviceGroup.
// Determinism:   a sum has the same bits on all ranks. NCCL chooses the order of additions.
// Source:        NVIDIA NCCL User Guide, "Fault Tolerance", "Creating a communicator with options".
#ifndef QUIRE_KERNELS_CUDA_DEVICE_GROUP_H_
#define QUIRE_KERNELS_CUDA_DEVICE_GROUP_H_

#include <cstdint>

#include "kernels/api/collective.h"
#include "kernels/cuda/gpu_ops.h"

namespace quire::gpu {

inline constexpr int kNoNccl = -3;
inline constexpr int kNcclError = -2000;

// Identifies a group. One rank makes the id and sends it to the others.
struct DeviceGroupId {
  char bytes[128];
};

// Opens libnccl, which stays open. Must be called before the other functions. path: the library's
// file, or null for the usual names and folders. Returns kNoNccl if the library is missing or lacks
// a function, and always in the emulated build.
int OpenNccl(const char* path);

int MakeDeviceGroupId(DeviceGroupId* id);
// Joins the group with the current device, which no other rank may use. All ranks must call this
// function. Sets *group to null if the call itself returns an error.
int BeginDeviceGroup(const DeviceGroupId& id, int32_t rank, int32_t size, void** group);
// Sets *is_settled to false while NCCL still works on the last call (ncclInProgress), else to true.
// Returns the group's error, or 0.
int PollDeviceGroup(void* group, bool* is_settled);
// Aborts operations under way and frees the group.
int EndDeviceGroup(void* group);

// Merges the ranks' data in place. dtype: f32, bf16 or f16. count: number of elements. For
// Merge::kDisjoint the size of `data` must be a multiple of 4 bytes.
int AllReduceOverGroup(
    void* group, void* data, int64_t count, DType dtype, Merge merge, Stream stream);
int SendToGroup(void* group, const float* data, int64_t count, int32_t to_rank, Stream stream);
// Receives counts[rank] floats from every rank except 0, stored in the order of the ranks.
int ReceiveFromGroup(
    void* group, float* data, const int64_t* counts, int32_t num_ranks, Stream stream);

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_DEVICE_GROUP_H_
