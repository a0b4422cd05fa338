#include "scheduler/sim/cost_model.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/check.h"

namespace quire {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

// Share of the peak FLOPS that good kernels reach in matrix products of a few hundred rows. Large
// training runs report the same share: Narayanan et al. 2021 measured 51 to 52 % on A100.
constexpr double kFlopsShare = 0.5;
// Share of the peak memory bandwidth that good kernels reach. STREAM-like copies reach 80 to 90 %.
constexpr double kMemoryShare = 0.8;

// Time of a small all-reduce over the GPUs of one NVLink machine: the least time of any all-reduce.
constexpr double kReduceLatencySeconds = 15e-6;
constexpr int32_t kReducesPerLayer = 2;

// The attention kernel of the PagedAttention paper is 20 to 26 % slower than a kernel without a
// block table (Fig 18a).
constexpr double kBlockTableSlowdown = 1.23;

// Little's law for the attention kernel: bytes in flight = rate * latency. A warp has one block of
// one head in flight, and the kernel's use of registers allows 16 warps on a core (streaming
// multiprocessor). Blocks that are too short do not keep the memory busy.
constexpr double kMemoryLatencySeconds = 600e-9;
constexpr double kWarpsPerCore = 16;
constexpr double kElementBytes = 2;

// Numbers from NVIDIA's data sheets of A100 (SXM, 40 and 80 GB), H100 and H200 (SXM). host_rate is
// the rate that 16 lanes of PCIe 4 (A100) or PCIe 5 (H100, H200) reach in practice.
GpuSpec A100Gpu40() {
  return {.flops = 312e12, .memory_rate = 1555e9, .link_rate = 300e9, .host_rate = 25e9};
}

GpuSpec A100Gpu80() {
  return {.flops = 312e12, .memory_rate = 2039e9, .link_rate = 300e9, .host_rate = 25e9};
}

GpuSpec H100Gpu() {
  return {.flops = 989e12,
          .memory_rate = 3350e9,
          .link_rate = 450e9,
          .host_rate = 50e9,
          .num_cores = 132};
}

GpuSpec H200Gpu() {
  GpuSpec gpu = H100Gpu();
  gpu.memory_rate = 4800e9;
  return gpu;
}

// Bytes of weights are from Table 1 of the PagedAttention paper, shapes from the OPT and LLaMA
// papers.
ModelSpec Opt13B() {
  return {.weight_bytes = 26e9,
          .num_parameters = 13e9,
          .num_layers = 40,
          .hidden_size = 5120,
          .kv_size = 5120};
}

ModelSpec Opt66B() {
  return {.weight_bytes = 132e9,
          .num_parameters = 66e9,
          .num_layers = 64,
          .hidden_size = 9216,
          .kv_size = 9216};
}

ModelSpec Opt175B() {
  return {.weight_bytes = 346e9,
          .num_parameters = 173e9,
          .num_layers = 96,
          .hidden_size = 12288,
          .kv_size = 12288};
}

// Grouped-query attention: eight heads of K and V with 128 elements each.
ModelSpec Llama3Of8B() {
  return {.weight_bytes = 16.06e9,
          .num_parameters = 8.03e9,
          .num_layers = 32,
          .hidden_size = 4096,
          .kv_size = 1024};
}

// The models of the vAttention paper, from their published configurations.
ModelSpec Yi6B() {
  return {.weight_bytes = 12.12e9,
          .num_parameters = 6.06e9,
          .num_layers = 32,
          .hidden_size = 4096,
          .kv_size = 512,
          .query_size = 4096};
}

ModelSpec Yi34B() {
  return {.weight_bytes = 68.78e9,
          .num_parameters = 34.39e9,
          .num_layers = 60,
          .hidden_size = 7168,
          .kv_size = 1024,
          .query_size = 7168};
}

// Llama 3 8B for long prompts, where the time of attention's matrix products matters.
ModelSpec Llama3Of8BLong() {
  ModelSpec model = Llama3Of8B();
  model.query_size = 4096;
  return model;
}

ModelSpec Llama3Of70B() {
  return {.weight_bytes = 141.1e9,
          .num_parameters = 70.55e9,
          .num_layers = 80,
          .hidden_size = 8192,
          .kv_size = 1024};
}

// Overhead of systems from the time of the PagedAttention paper: they drove the GPU from Python. In
// vllm-project/vllm#6854 the GPU waits 5 to 13 ms for the CPU in every decode step. The constants
// give 5 ms for one sequence and 13 ms for a full batch of 256 sequences.
constexpr StepOverhead kSystemsOf2023 = {.fixed_s = 5e-3, .per_sequence_s = 8e-3 / 256};

// Overhead of vLLM 0.27, measured by a third party: 541 us, plus 12.7 us for each sequence.
constexpr StepOverhead kSystemsOf2026 = {.fixed_s = 541e-6, .per_sequence_s = 12.7e-6};

// Returns the bytes of the KV pool: nine tenths of the GPUs' memory, minus the weights, minus 3 GB
// of activations on each GPU.
double PoolBytes(double gpu_bytes, int32_t num_gpus, const ModelSpec& model) {
  return num_gpus * (0.9 * gpu_bytes - 3e9) - model.weight_bytes;
}

std::vector<Platform> MakePlatforms() {
  const ModelSpec small = Llama3Of8B();
  const ModelSpec large = Llama3Of70B();
  const ModelSpec yi6 = Yi6B();
  const ModelSpec yi34 = Yi34B();
  const ModelSpec small_long = Llama3Of8BLong();
  const GpuSpec a100 = A100Gpu80();
  // The pools of the first three platforms are from Table 1 of the PagedAttention paper. The table
  // rounds OPT-66B's pool to 21 GB, which would hold only 9.6K slots. The 9.7K slots of the same
  // table take 21.2 to 21.4 GiB, so OPT-66B has a pool of 21.3 GiB here.
  return {
      {"a100-opt-13b", A100Gpu40(), 1, Opt13B(), 12 * kGiB, kSystemsOf2023},
      {"a100x4-opt-66b", A100Gpu40(), 4, Opt66B(), 21.3 * kGiB, kSystemsOf2023},
      {"a100x8-opt-175b", A100Gpu80(), 8, Opt175B(), 264 * kGiB, kSystemsOf2023},
      // LLaMA-13B has OPT-13B's shape.
      {"a100-llama-13b", A100Gpu40(), 1, Opt13B(), 12 * kGiB, kSystemsOf2023},
      {"h100-llama3-8b", H100Gpu(), 1, small, PoolBytes(80e9, 1, small), kSystemsOf2026},
      {"h200-llama3-8b", H200Gpu(), 1, small, PoolBytes(141e9, 1, small), kSystemsOf2026},
      {"h100x4-llama3-70b", H100Gpu(), 4, large, PoolBytes(80e9, 4, large), kSystemsOf2026},
      {"h200x2-llama3-70b", H200Gpu(), 2, large, PoolBytes(141e9, 2, large), kSystemsOf2026},
      {"a100-yi-6b", a100, 1, yi6, PoolBytes(80e9, 1, yi6), kSystemsOf2023},
      {"a100x2-llama3-8b", a100, 2, small_long, PoolBytes(80e9, 2, small_long), kSystemsOf2023},
      {"a100x2-yi-34b", a100, 2, yi34, PoolBytes(80e9, 2, yi34), kSystemsOf2023},
  };
}

double SlowdownOf(const Platform& platform, int32_t block_size_tokens) {
  if (block_size_tokens == kContiguous) {
    return 1;
  }
  const double needed = platform.gpu.memory_rate / platform.gpu.num_cores * kMemoryLatencySeconds;
  const double under_way =
      kWarpsPerCore * block_size_tokens * platform.model.head_dim * kElementBytes;
  return kBlockTableSlowdown * std::max(1.0, needed / under_way);
}

}  // namespace

const std::vector<Platform>& AllPlatforms() {
  static const std::vector<Platform> platforms = MakePlatforms();
  return platforms;
}

absl::StatusOr<Platform> FindPlatform(std::string_view name) {
  std::string names;
  for (const Platform& platform : AllPlatforms()) {
    if (platform.name == name) {
      return platform;
    }
    absl::StrAppend(&names, names.empty() ? "" : ", ", platform.name);
  }
  return absl::NotFoundError(
      absl::StrCat("platform ", std::string(name), " is unknown; known platforms: ", names));
}

CostModel::CostModel(const Platform& platform, int32_t block_size_tokens)
    : platform_(platform), attention_slowdown_(SlowdownOf(platform, block_size_tokens)) {
  QUIRE_CHECK(block_size_tokens >= 0);
}

double CostModel::StepSeconds(const StepWork& work) const {
  return platform_.overhead.fixed_s + platform_.overhead.per_sequence_s * work.num_sequences +
         LinearSeconds(work.num_tokens) +
         std::max(AttentionSeconds(work.num_context_tokens),
                  AttentionProductSeconds(work.num_attended_tokens)) +
         ReduceSeconds(work.num_tokens);
}

double CostModel::LinearSeconds(int64_t num_tokens) const {
  const double gpus = platform_.num_gpus;
  const double read =
      platform_.model.weight_bytes / (gpus * platform_.gpu.memory_rate * kMemoryShare);
  const double computed = 2 * platform_.model.num_parameters * static_cast<double>(num_tokens) /
                          (gpus * platform_.gpu.flops * kFlopsShare);
  return std::max(read, computed);
}

double CostModel::AttentionSeconds(int64_t num_context_tokens) const {
  const double bytes =
      static_cast<double>(num_context_tokens * platform_.model.kv_bytes_per_token());
  return attention_slowdown_ * bytes /
         (platform_.num_gpus * platform_.gpu.memory_rate * kMemoryShare);
}

double CostModel::AttentionProductSeconds(int64_t num_attended_tokens) const {
  // Two products, Q with K and attention weights with V. Each has a multiplication and an addition
  // per element.
  const double flops = 4.0 * platform_.model.query_size * platform_.model.num_layers *
                       static_cast<double>(num_attended_tokens);
  return flops / (platform_.num_gpus * platform_.gpu.flops * kFlopsShare);
}

double CostModel::ReduceSeconds(int64_t num_tokens) const {
  if (platform_.num_gpus == 1) {
    return 0;
  }
  const double gpus = platform_.num_gpus;
  const double bytes = static_cast<double>(num_tokens) * platform_.model.hidden_size *
                       kElementBytes * 2 * (gpus - 1) / gpus;
  return platform_.model.num_layers * kReducesPerLayer *
         (kReduceLatencySeconds + bytes / platform_.gpu.link_rate);
}

}  // namespace quire
