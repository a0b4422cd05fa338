#include "scheduler/sim/cost_model.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/check.h"

namespace quire {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

// Shares of the peaks that good kernels reach. Half of the peak for matrix products of a few
// hundred rows (large training runs report the same share: Narayanan et al. 2021
// measured 51 to 52 % on A100); 80 % of the memory's peak (STREAM-like copies reach 80 to 90 %).
constexpr double kFlopsShare = 0.5;
constexpr double kMemoryShare = 0.8;

// Fixed time of a sum over the GPUs of one NVLink machine, which is the time of a small sum.
constexpr double kReduceLatencySeconds = 15e-6;
constexpr int32_t kReducesPerLayer = 2;

// The paper's attention kernel is 20 to 26 % slower than one without a block table (Fig 18a).
constexpr double kBlockTableSlowdown = 1.23;

// Little's law for the attention kernel: bytes in flight = rate * latency. A warp has one block of
// one head in flight, and the kernel's use of registers allows 16 warps on a core. Blocks that are
// too short do not keep the memory busy.
constexpr double kMemoryLatencySeconds = 600e-9;
constexpr double kWarpsPerCore = 16;
constexpr double kElementBytes = 2;

// NVIDIA's data sheets: A100 (SXM, 40 and 80 GB), H100 and H200 (SXM). Host links: what PCIe 4 and
// PCIe 5 with 16 lanes reach in practice.
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

// Bytes of weights: the paper's Table 1. Shapes: the OPT and LLaMA papers.
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

// Eight heads of K and V with 128 elements each, shared by groups of query heads.
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

// For long prompts, where the time of attention's products matters.
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

// The systems of the paper's time were Python around the GPU: vllm-project/vllm#6854 reports 5 to
// 13 ms in which the GPU waits for the CPU in every decode step. Taken as 5 ms for one sequence,
// 13 ms for a full batch of 256.
constexpr StepOverhead kSystemsOf2023 = {.fixed_s = 5e-3, .per_sequence_s = 8e-3 / 256};

// Third-party measurement of vLLM 0.27: 541 us a step and 12.7 us a sequence.
constexpr StepOverhead kSystemsOf2026 = {.fixed_s = 541e-6, .per_sequence_s = 12.7e-6};

// Returns the bytes of the KV pool: nine tenths of the memory, less the weights and 3 GB of
// activations on each GPU.
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
  // Pools of the first three platforms: the paper's Table 1. It rounds OPT-66B's pool to 21 GB,
  // which would hold 9.6K slots; the 9.7K slots that it gives take 21.2 to 21.4 GiB.
  return {
      {"a100-opt-13b", A100Gpu40(), 1, Opt13B(), 12 * kGiB, kSystemsOf2023},
      {"a100x4-opt-66b", A100Gpu40(), 4, Opt66B(), 21.3 * kGiB, kSystemsOf2023},
      {"a100x8-opt-175b", A100Gpu80(), 8, Opt175B(), 264 * kGiB, kSystemsOf2023},
      {"a100-llama-13b", A100Gpu40(), 1, Opt13B(), 12 * kGiB, kSystemsOf2023},  // OPT-13B's shape
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
      absl::StrCat("platform ", std::string(name), " is not known; there are: ", names));
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
  // Two products, of Q with K and of the weights with V, each a multiplication and an addition.
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
