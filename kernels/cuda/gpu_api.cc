#include "kernels/cuda/gpu_api.h"

namespace quire::gpu {
namespace {

constexpr GpuApi kApi = {
    .version = kGpuApiVersion,
#ifdef QUIRE_GPU_EMULATED
    .name = "emu",
#else
    .name = "cuda",
#endif
    .count_devices = &CountDevices,
    .set_device = &SetDevice,
    .query_device = &QueryDevice,
    .allocate = &Allocate,
    .free = &Free,
    .allocate_pinned = &AllocatePinned,
    .free_pinned = &FreePinned,
    .window_page_bytes = &WindowPageBytes,
    .create_windows = &CreateWindows,
    .destroy_windows = &DestroyWindows,
    .map_places = &MapPlaces,
    .unmap_places = &UnmapPlaces,
    .copy_to_device = &CopyToDevice,
    .copy_to_host = &CopyToHost,
    .copy_many = &CopyMany,
    .copy_columns = &CopyColumns,
    .fill_bytes = &FillBytes,
    .create_stream = &CreateStream,
    .destroy_stream = &DestroyStream,
    .synchronize = &Synchronize,
    .create_event = &CreateEvent,
    .destroy_event = &DestroyEvent,
    .record_event = &RecordEvent,
    .wait_for_event = &WaitForEvent,
    .query_event = &QueryEvent,
    .synchronize_event = &SynchronizeEvent,
    .begin_graph = &BeginGraph,
    .end_graph = &EndGraph,
    .launch_graph = &LaunchGraph,
    .destroy_graph = &DestroyGraph,
    .error_text = &ErrorText,
    .create_gemm = &CreateGemm,
    .destroy_gemm = &DestroyGemm,
    .check_gemm = &CheckGemm,
    .is_gemm_planned = &IsGemmPlanned,
    .run_gemm = &RunGemm,
    .open_nccl = &OpenNccl,
    .make_device_group_id = &MakeDeviceGroupId,
    .begin_device_group = &BeginDeviceGroup,
    .poll_device_group = &PollDeviceGroup,
    .end_device_group = &EndDeviceGroup,
    .all_reduce_over_group = &AllReduceOverGroup,
    .send_to_group = &SendToGroup,
    .receive_from_group = &ReceiveFromGroup,
    .embed = &Embed,
    .norm = &Norm,
    .activate = &Activate,
    .prepare_attention = &PrepareAttention,
    .plan_decode = &PlanDecode,
    .decode = &Decode,
    .decode_grid_size = &DecodeGridSize,
    .decode_lines_grid_size = &DecodeLinesGridSize,
    .decode_partial_floats = &DecodePartialFloats,
    .prefill = &Prefill,
    .copy_blocks = &CopyBlocks,
    .quantize_rows = &QuantizeRows,
    .sample = &Sample,
};

}  // namespace
}  // namespace quire::gpu

extern "C" __attribute__((visibility("default"))) const quire::gpu::GpuApi* quire_gpu_api() {
  return &quire::gpu::kApi;
}
