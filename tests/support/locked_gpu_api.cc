#include "tests/support/locked_gpu_api.h"

#include <cstddef>
#include <mutex>

#include "common/base/check.h"

namespace quire {
namespace {

using gpu::GpuApi;

const GpuApi* library = nullptr;
std::mutex mutex;

template <auto kFunction>
struct Locked;
template <typename Result, typename... Args, Result (*GpuApi::*kFunction)(Args...)>
struct Locked<kFunction> {
  static Result Call(Args... args) {
    const std::lock_guard<std::mutex> lock(mutex);
    return (library->*kFunction)(args...);
  }
};

template <auto... kFunctions>
GpuApi Lock() {
  static_assert(sizeof(GpuApi) == offsetof(GpuApi, count_devices) +
                                      sizeof...(kFunctions) * sizeof(&gpu::CountDevices),
                "every function of the table stands in the list");
  GpuApi locked = *library;
  ((locked.*kFunctions = &Locked<kFunctions>::Call), ...);
  return locked;
}

GpuApi LockAll() {
  return Lock<&GpuApi::count_devices,
              &GpuApi::set_device,
              &GpuApi::query_device,
              &GpuApi::allocate,
              &GpuApi::free,
              &GpuApi::allocate_pinned,
              &GpuApi::free_pinned,
              &GpuApi::window_page_bytes,
              &GpuApi::create_windows,
              &GpuApi::destroy_windows,
              &GpuApi::map_places,
              &GpuApi::unmap_places,
              &GpuApi::copy_to_device,
              &GpuApi::copy_to_host,
              &GpuApi::copy_many,
              &GpuApi::copy_columns,
              &GpuApi::fill_bytes,
              &GpuApi::create_stream,
              &GpuApi::destroy_stream,
              &GpuApi::synchronize,
              &GpuApi::create_event,
              &GpuApi::destroy_event,
              &GpuApi::record_event,
              &GpuApi::wait_for_event,
              &GpuApi::query_event,
              &GpuApi::synchronize_event,
              &GpuApi::begin_graph,
              &GpuApi::end_graph,
              &GpuApi::launch_graph,
              &GpuApi::destroy_graph,
              &GpuApi::error_text,
              &GpuApi::create_gemm,
              &GpuApi::destroy_gemm,
              &GpuApi::check_gemm,
              &GpuApi::is_gemm_planned,
              &GpuApi::run_gemm,
              &GpuApi::open_nccl,
              &GpuApi::make_device_group_id,
              &GpuApi::begin_device_group,
              &GpuApi::poll_device_group,
              &GpuApi::end_device_group,
              &GpuApi::all_reduce_over_group,
              &GpuApi::send_to_group,
              &GpuApi::receive_from_group,
              &GpuApi::embed,
              &GpuApi::norm,
              &GpuApi::activate,
              &GpuApi::prepare_attention,
              &GpuApi::plan_decode,
              &GpuApi::decode,
              &GpuApi::decode_grid_size,
              &GpuApi::decode_lines_grid_size,
              &GpuApi::decode_partial_floats,
              &GpuApi::prefill,
              &GpuApi::copy_blocks,
              &GpuApi::quantize_rows,
              &GpuApi::sample>();
}

}  // namespace

const GpuApi& LockedGpuApi(const GpuApi& api) {
  QUIRE_CHECK(library == nullptr || library == &api);
  library = &api;
  static const GpuApi locked = LockAll();
  return locked;
}

}  // namespace quire
