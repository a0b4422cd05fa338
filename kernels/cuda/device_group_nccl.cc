#include <cstring>
#include <optional>

#include <nccl.h>

#include "kernels/cuda/device_group.h"
#include "kernels/cuda/nccl.h"

namespace quire::gpu {
namespace {

static_assert(sizeof(DeviceGroupId) == sizeof(ncclUniqueId));

std::optional<NcclFunctions> library;

// ncclInProgress is not an error: PollDeviceGroup reports it as *is_settled = false.
int ErrorOf(ncclResult_t result) {
  return result == ncclSuccess || result == ncclInProgress ? 0
                                                           : kNcclError - static_cast<int>(result);
}

ncclComm_t CommOf(void* group) { return static_cast<ncclComm_t>(group); }

cudaStream_t StreamOf(Stream stream) { return static_cast<cudaStream_t>(stream); }

ncclDataType_t TypeOf(DType dtype) {
  return dtype == DType::kF32 ? ncclFloat32 : dtype == DType::kBF16 ? ncclBfloat16 : ncclFloat16;
}

}  // namespace

int OpenNccl(const char* path) {
  if (!library.has_value()) {
    library = OpenNcclLibrary(path);
  }
  return library.has_value() ? 0 : kNoNccl;
}

int MakeDeviceGroupId(DeviceGroupId* id) {
  ncclUniqueId unique = {};
  const int error = ErrorOf(library->get_unique_id(&unique));
  memcpy(id, &unique, sizeof(unique));
  return error;
}

int BeginDeviceGroup(const DeviceGroupId& id, int32_t rank, int32_t size, void** group) {
  ncclUniqueId unique = {};
  memcpy(&unique, &id, sizeof(unique));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  const int error = ErrorOf(library->comm_init(&comm, size, unique, rank, &config));
  *group = comm;
  return error;
}

int PollDeviceGroup(void* group, bool* is_settled) {
  ncclResult_t state = ncclSuccess;
  const int error = ErrorOf(library->get_async_error(CommOf(group), &state));
  *is_settled = state != ncclInProgress;
  return error != 0 ? error : ErrorOf(state);
}

int EndDeviceGroup(void* group) { return ErrorOf(library->comm_abort(CommOf(group))); }

int AllReduceOverGroup(
    void* group, void* data, int64_t count, DType dtype, Merge merge, Stream stream) {
  ncclDataType_t type = TypeOf(dtype);
  if (merge == Merge::kDisjoint) {
    // At each index, at most one rank has an integer that is not zero. So the sum over the ranks is
    // that integer, bit for bit.
    type = ncclUint32;
    count = count * SizeOf(dtype) / int64_t{sizeof(uint32_t)};
  }
  return ErrorOf(library->all_reduce(
      data, data, static_cast<size_t>(count), type, ncclSum, CommOf(group), StreamOf(stream)));
}

int SendToGroup(void* group, const float* data, int64_t count, int32_t to_rank, Stream stream) {
  return ErrorOf(library->send(
      data, static_cast<size_t>(count), ncclFloat32, to_rank, CommOf(group), StreamOf(stream)));
}

// Receives all parts in one NCCL group call, so that they can arrive in any order: each rank sends
// when it is ready.
int ReceiveFromGroup(
    void* group, float* data, const int64_t* counts, int32_t num_ranks, Stream stream) {
  int error = ErrorOf(library->group_start());
  for (int32_t rank = 1; rank < num_ranks && error == 0; ++rank) {
    error = ErrorOf(library->receive(data,
                                     static_cast<size_t>(counts[rank]),
                                     ncclFloat32,
                                     rank,
                                     CommOf(group),
                                     StreamOf(stream)));
    data += counts[rank];
  }
  const int ended = ErrorOf(library->group_end());
  return error != 0 ? error : ended;
}

}  // namespace quire::gpu
