// NVIDIA's library for collectives, opened at run time, so that quire_cuda.so can be loaded where
// no CUDA library is installed.
//
// Thread safety: any thread may call OpenNcclLibrary. The functions that it returns stay valid.
#ifndef QUIRE_KERNELS_CUDA_NCCL_H_
#define QUIRE_KERNELS_CUDA_NCCL_H_

#include <optional>

#include <nccl.h>

namespace quire::gpu {

// The functions of the library that we call.
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

// Opens libnccl, which stays open until the process ends. path: the library's file, or null to try
// the usual paths. Returns nullopt if the library is missing or lacks a function.
std::optional<NcclFunctions> OpenNcclLibrary(const char* path);

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_NCCL_H_
