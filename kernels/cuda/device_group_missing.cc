// Replaces device_group_nccl.cc if NCCL's headers are not installed, and in quire_emu.so, because
// NCCL does not work on emulated devices.
#include "kernels/cuda/device_group.h"

namespace quire::gpu {

int OpenNccl(const char* /*path*/) { return kNoNccl; }

int MakeDeviceGroupId(DeviceGroupId* /*id*/) { return kNoNccl; }

int BeginDeviceGroup(const DeviceGroupId& /*id*/,
                     int32_t /*rank*/,
                     int32_t /*size*/,
                     void** /*group*/) {
  return kNoNccl;
}

int PollDeviceGroup(void* /*group*/, bool* /*is_settled*/) { return kNoNccl; }

int EndDeviceGroup(void* /*group*/) { return kNoNccl; }

int AllReduceOverGroup(void* /*group*/,
                       void* /*data*/,
                       int64_t /*count*/,
                       DType /*dtype*/,
                       Merge /*merge*/,
                       Stream /*stream*/) {
  return kNoNccl;
}

int SendToGroup(void* /*group*/,
                const float* /*data*/,
                int64_t /*count*/,
                int32_t /*to_rank*/,
                Stream /*stream*/) {
  return kNoNccl;
}

int ReceiveFromGroup(void* /*group*/,
                     float* /*data*/,
                     const int64_t* /*counts*/,
                     int32_t /*num_ranks*/,
                     Stream /*stream*/) {
  return kNoNccl;
}

}  // namespace quire::gpu
