// StepMemory is the memory of steps beside the model's own buffers: inputs, and intermediate
// results of operations. Reserve allocates all of it, so that steps within the reserved needs
// allocate nothing.
//
// Thread safety: one caller at a time (the executor thread).
// Errors:        a failing device ends the process, as in GpuBackend.
#ifndef QUIRE_KERNELS_GPU_STEP_MEMORY_H_
#define QUIRE_KERNELS_GPU_STEP_MEMORY_H_

#include <cstdint>
#include <map>
#include <set>

#include "absl/status/status.h"

#include "kernels/cuda/gpu_api.h"
#include "kernels/gpu/gpu_memory.h"
#include "kernels/gpu/staging_ring.h"
#include "kernels/gpu/step_needs.h"

namespace quire {

class StepMemory {
 public:
  // Number of blocks that CopyBlocks copies in one pass.
  static constexpr int64_t kCopiesPerPass = 4096;

  explicit StepMemory(const gpu::GpuApi& api) : api_(api) {}

  // Frees the memory of split_starts. Until Reserve, the memory for each of these sliding windows
  // is empty.
  void SetWindows(const std::set<int32_t>& windows);
  // Makes room for all needs; nothing becomes smaller. Growing waits for the device, because it
  // frees older memory. Errors: kResourceExhausted, reason MEMORY; part of the memory may then be
  // gone.
  absl::Status Reserve(const StepNeeds& needs);
  absl::Status ReserveBlockPairs();
  // Enqueues a fill of next_item and arrivals with zeros. Must be called after each Reserve.
  void ClearCounters(gpu::Stream stream);

  StagingRing& staging() { return staging_; }
  void* inputs() const { return inputs_.data(); }
  int64_t input_bytes() const { return inputs_.capacity_bytes(); }
  // Block tables of replayed steps. Their rows have the same width in all steps.
  void* tables() const { return tables_.data(); }
  // Partial results of a group of decodes.
  float* partials() const { return static_cast<float*>(partials_.data()); }
  int64_t partial_bytes() const { return partials_.capacity_bytes(); }
  // The counters: one PrefillPlan::next_item, then DecodePlan::arrivals.
  int32_t* next_item() const { return static_cast<int32_t*>(counters_.data()); }
  int32_t* arrivals() const { return next_item() + 1; }
  // DecodePlan::split_start of all decode groups of a step. REQUIRES: the last SetWindows included
  // sliding_window.
  int32_t* split_starts(int32_t sliding_window) const;
  void* block_pairs() const { return block_pairs_.data(); }
  GpuScratch& fp8_rows() { return fp8_rows_; }      // input of one product: e4m3 [rows, width]
  GpuScratch& fp8_scales() { return fp8_scales_; }  // scales of fp8_rows: fp32 [rows]
  GpuScratch& gathered_parts() { return gathered_parts_; }  // received by NcclGroup::Gather

 private:
  const gpu::GpuApi& api_;
  StagingRing staging_{api_};
  GpuScratch inputs_{api_};
  GpuScratch tables_{api_};
  GpuScratch partials_{api_};
  GpuScratch counters_{api_};
  std::map<int32_t, GpuScratch> split_starts_;  // by sliding window
  GpuScratch block_pairs_{api_};
  GpuScratch fp8_rows_{api_};
  GpuScratch fp8_scales_{api_};
  GpuScratch gathered_parts_{api_};
};

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_STEP_MEMORY_H_
