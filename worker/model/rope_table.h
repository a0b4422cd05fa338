// RopeTable holds the cosines and sines of rotary position embedding. The table grows when later
// positions are needed, because a table of all positions can be too large. A model with a million
// positions and a head_dim of 128 would need 512 MB.
//
// Angles follow Hugging Face transformers: inverse frequencies, and their product with the
// position, are rounded to fp32 in the same order of operations. At position 100,000 an exact angle
// would differ from the angle in transformers by some thousandths of a radian. yarn and longrope
// multiply cosines and sines by RopeConfig::attention_factor.
//
// Thread safety: one caller at a time.
// Shapes:        cos() and sin() [num_positions(), head_dim / 2].
// Source:        Su et al. 2021, RoFormer; scalings: rope_frequencies.h.
#ifndef QUIRE_WORKER_MODEL_ROPE_TABLE_H_
#define QUIRE_WORKER_MODEL_ROPE_TABLE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "common/model/model_config.h"
#include "kernels/api/kernel_backend.h"
#include "worker/model/device_buffer.h"

namespace quire {

class RopeTable {
 public:
  // max_context_tokens: see InverseFrequencies. The backend must outlive the table.
  RopeTable(const RopeConfig& rope,
            int32_t head_dim,
            int32_t max_context_tokens,
            KernelBackend& backend);

  // Makes positions 0 to `num_positions` - 1 available. If the table grows, pointers that cos and
  // sin returned earlier become invalid. The table grows to the next power of two, so that a
  // decoding sequence does not grow the table at every step. Errors: those of
  // KernelBackend::Allocate.
  absl::Status Reserve(int64_t num_positions);

  int64_t num_positions() const { return num_positions_; }
  const float* cos() const { return cos_.floats(); }
  const float* sin() const { return sin_.floats(); }

 private:
  std::vector<float> inverse_frequencies_;
  float attention_factor_;
  KernelBackend& backend_;
  int64_t num_positions_ = 0;
  DeviceBuffer cos_;
  DeviceBuffer sin_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_ROPE_TABLE_H_
