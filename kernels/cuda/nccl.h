// Nccl is NVIDIA's library for collectives, opened at run time: the library with our kernels needs
// no CUDA library to start.
//
// Thread safety: immutable once it is open.
#ifndef QUIRE_KERNELS_CUDA_NCCL_H_
#define QUIRE_KERNELS_CUDA_NCCL_H_

#include <optional>

#include <nccl.h>

namespace quire::gpu {

// The functions of the library that are used.
struct NcclFunctions {
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) comm_init;
  decltype(&ncclCommGetAsyncError) get_async_error;
  decltype(&ncclCommAbort) comm_abort;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
};

// path: of the library, or null: the usual places. It stays open until the process ends. Nothing
// where it is not there or lacks a function.
std::optional<NcclFunctions> OpenNcclLibrary(const char* path);

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_NCCL_H_
