// CostModel computes how long a step takes on a named machine with a named model, by roofline
// arithmetic: bytes read, matrix products computed, bytes sent between GPUs, and a fixed overhead.
// No constant is fitted to a figure that the simulator reproduces; the newest file in results/
// gives the sources of the constants.
//
// Thread safety: value types; const methods and free functions are safe from any thread.
// Units:         seconds, bytes, bytes per second, floating-point operations per second.
#ifndef QUIRE_SCHEDULER_SIM_COST_MODEL_H_
#define QUIRE_SCHEDULER_SIM_COST_MODEL_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quire {

struct GpuSpec {
  double flops = 0;         // dense fp16 operations/s, peak
  double memory_rate = 0;   // bytes/s, peak
  double link_rate = 0;     // bytes/s to the other GPUs, one direction
  double host_rate = 0;     // bytes/s to and from the host, one direction
  int32_t num_cores = 108;  // streaming multiprocessors
};

struct ModelSpec {
  double weight_bytes = 0;
  double num_parameters = 0;
  int32_t num_layers = 0;
  int32_t hidden_size = 0;
  int32_t kv_size = 0;  // elements of K of one token in one layer; V has the same number
  int32_t head_dim = 128;
  // Elements of Q of one token in one layer. If 0, attention's matrix products cost nothing. The
  // PagedAttention paper's platforms use 0, because that paper's prompts are too short for these
  // products to matter.
  int32_t query_size = 0;

  int64_t kv_bytes_per_token() const { return int64_t{2} * num_layers * kv_size * 2; }  // fp16
};

// Time of a step outside the model's arithmetic: planning, building the batch, launching, sampling.
struct StepOverhead {
  double fixed_s = 0;
  double per_sequence_s = 0;
};

struct Platform {
  std::string name;
  GpuSpec gpu;
  int32_t num_gpus = 1;
  ModelSpec model;
  double kv_pool_bytes = 0;  // summed over GPUs
  StepOverhead overhead;

  // Number of tokens whose K and V fit into the pool.
  int32_t num_kv_slots() const {
    return static_cast<int32_t>(kv_pool_bytes / static_cast<double>(model.kv_bytes_per_token()));
  }
};

const std::vector<Platform>& AllPlatforms();

// Errors: kNotFound, listing the known names.
absl::StatusOr<Platform> FindPlatform(std::string_view name);

struct StepWork {
  int64_t num_tokens = 0;          // tokens that the step computes
  int64_t num_context_tokens = 0;  // tokens whose K and V are read
  int32_t num_sequences = 0;
  int64_t num_attended_tokens = 0;  // pairs of a computed token and a token that it attends to
};

// Returns StepWork::num_attended_tokens of one sequence. The sequence has num_context_tokens
// tokens, and the step computes the last num_tokens of them. A token attends to itself and to all
// tokens before it.
constexpr int64_t NumAttendedTokens(int64_t num_tokens, int64_t num_context_tokens) {
  return num_tokens * (2 * num_context_tokens - num_tokens + 1) / 2;
}

// Special block size: K and V of a sequence are contiguous, and the kernel reads no block table.
inline constexpr int32_t kContiguous = 0;

class CostModel {
 public:
  CostModel(const Platform& platform, int32_t block_size_tokens);

  double StepSeconds(const StepWork& work) const;

  // The parts of StepSeconds besides the overhead. StepSeconds adds only the longer of the two
  // attention times.
  double LinearSeconds(int64_t num_tokens) const;             // matrix products with weights
  double AttentionSeconds(int64_t num_context_tokens) const;  // reading K and V
  double AttentionProductSeconds(int64_t num_attended_tokens) const;
  double ReduceSeconds(int64_t num_tokens) const;  // all-reduces over the GPUs

 private:
  Platform platform_;
  double attention_slowdown_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_COST_MODEL_H_
