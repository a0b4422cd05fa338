// GpuApi is the C interface of the kernel library, which the worker opens at run time. The library
// is quire_cuda.so, built by nvcc, or quire_emu.so, the same kernels on the CPU. So one worker
// program starts on machines with and without a GPU, and needs no CUDA library installed.
//
// Thread safety: a GpuApi is constant. For each function, see the header that declares it.
#ifndef QUIRE_KERNELS_CUDA_GPU_API_H_
#define QUIRE_KERNELS_CUDA_GPU_API_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device_group.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/quantize_rows.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/windows.h"

namespace quire::gpu {

// Incremented with every change of a signature or struct. The worker refuses a library of another
// version.
inline constexpr uint32_t kGpuApiVersion = 10;

struct GpuApi {
  uint32_t version = kGpuApiVersion;
  const char* name = "";  // "cuda" or "emu"

  decltype(&CountDevices) count_devices = nullptr;
  decltype(&SetDevice) set_device = nullptr;
  decltype(&QueryDevice) query_device = nullptr;
  decltype(&Allocate) allocate = nullptr;
  decltype(&Free) free = nullptr;
  decltype(&AllocatePinned) allocate_pinned = nullptr;
  decltype(&FreePinned) free_pinned = nullptr;
  decltype(&WindowPageBytes) window_page_bytes = nullptr;
  decltype(&CreateWindows) create_windows = nullptr;
  decltype(&DestroyWindows) destroy_windows = nullptr;
  decltype(&MapPlaces) map_places = nullptr;
  decltype(&UnmapPlaces) unmap_places = nullptr;
  decltype(&CopyToDevice) copy_to_device = nullptr;
  decltype(&CopyToHost) copy_to_host = nullptr;
  decltype(&CopyMany) copy_many = nullptr;
  decltype(&CopyColumns) copy_columns = nullptr;
  decltype(&FillBytes) fill_bytes = nullptr;
  decltype(&CreateStream) create_stream = nullptr;
  decltype(&DestroyStream) destroy_stream = nullptr;
  decltype(&Synchronize) synchronize = nullptr;
  decltype(&CreateEvent) create_event = nullptr;
  decltype(&DestroyEvent) destroy_event = nullptr;
  decltype(&RecordEvent) record_event = nullptr;
  decltype(&WaitForEvent) wait_for_event = nullptr;
  decltype(&QueryEvent) query_event = nullptr;
  decltype(&SynchronizeEvent) synchronize_event = nullptr;
  decltype(&BeginGraph) begin_graph = nullptr;
  decltype(&EndGraph) end_graph = nullptr;
  decltype(&LaunchGraph) launch_graph = nullptr;
  decltype(&DestroyGraph) destroy_graph = nullptr;
  decltype(&ErrorText) error_text = nullptr;

  decltype(&CreateGemm) create_gemm = nullptr;
  decltype(&DestroyGemm) destroy_gemm = nullptr;
  decltype(&CheckGemm) check_gemm = nullptr;
  decltype(&IsGemmPlanned) is_gemm_planned = nullptr;
  decltype(&RunGemm) run_gemm = nullptr;

  decltype(&OpenNccl) open_nccl = nullptr;
  decltype(&MakeDeviceGroupId) make_device_group_id = nullptr;
  decltype(&BeginDeviceGroup) begin_device_group = nullptr;
  decltype(&PollDeviceGroup) poll_device_group = nullptr;
  decltype(&EndDeviceGroup) end_device_group = nullptr;
  decltype(&AllReduceOverGroup) all_reduce_over_group = nullptr;
  decltype(&SendToGroup) send_to_group = nullptr;
  decltype(&ReceiveFromGroup) receive_from_group = nullptr;

  decltype(&Embed) embed = nullptr;
  decltype(&Norm) norm = nullptr;
  decltype(&Activate) activate = nullptr;
  decltype(&PrepareAttention) prepare_attention = nullptr;
  decltype(&PlanDecode) plan_decode = nullptr;
  decltype(&Decode) decode = nullptr;
  decltype(&DecodeGridSize) decode_grid_size = nullptr;
  decltype(&DecodeLinesGridSize) decode_lines_grid_size = nullptr;
  decltype(&DecodePartialFloats) decode_partial_floats = nullptr;
  decltype(&Prefill) prefill = nullptr;
  decltype(&CopyBlocks) copy_blocks = nullptr;
  decltype(&QuantizeRows) quantize_rows = nullptr;
  decltype(&Sample) sample = nullptr;
};

// The library exports one function of this name and type.
inline constexpr char kGpuApiSymbol[] = "quire_gpu_api";
using GpuApiFunction = const GpuApi* (*)();

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_GPU_API_H_
