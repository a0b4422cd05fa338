// Speed of the CPU kernels beside the limits of the machine, measured in the same run.
//
//   build/bench/kernel_bench --benchmark_filter=Linear
//
// Machine/FmaPeak and Machine/MemoryRead are the limits. Linear reports GFLOP/s, GB/s of weights,
// and `of_fma_peak` and `of_memory`: its rates as fractions of those limits with the same number of
// threads. Whichever is near 1 is what bounds it. (The avx512bf16 path has about twice the
// arithmetic of the fp32 peak, so its of_fma_peak may reach 2.)
//
// Sizes are those of a Llama model of hidden size 1024 with 16 layers and a vocabulary of 32,000
// ("small"); weights of all layers are used in turn, so that they come from memory as in a server.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "benchmark/benchmark.h"

#include "kernels/cpu/cpu_backend.h"
#include "tests/bench/machine_limits.h"

namespace quire {
namespace {

std::unique_ptr<KernelBackend> MakeBackend(const std::string& isa, int num_threads) {
  auto backend = CreateCpuBackend({.num_threads = num_threads, .isa = isa});
  return backend.ok() ? std::move(*backend) : nullptr;
}

std::vector<float> RandomFloats(int64_t count, float scale) {
  std::mt19937 generator(1);
  std::normal_distribution<float> distribution(0.0F, scale);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = distribution(generator);
  }
  return values;
}

// Random weights; the bits of a small bf16 or fp16 number are as good as any.
std::vector<std::byte> RandomWeights(DType dtype, int64_t count) {
  std::vector<std::byte> bytes(static_cast<size_t>(count * SizeOf(dtype)));
  const std::vector<float> values = RandomFloats(count, 0.03F);
  if (dtype == DType::kF32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, &values[i], sizeof(bits));
    const uint32_t half = dtype == DType::kBF16 ? bits >> 16 : 0x2000U | (bits >> 8 & 0x83ffU);
    const auto stored = static_cast<uint16_t>(half);
    std::memcpy(bytes.data() + 2 * i, &stored, sizeof(stored));
  }
  return bytes;
}

void FmaPeak(benchmark::State& state) {
  for ([[maybe_unused]] auto _ : state) {
    state.counters["GFLOP/s"] = MeasureFmaPeak(static_cast<int>(state.range(0))) / 1e9;
  }
}
BENCHMARK(FmaPeak)->Name("Machine/FmaPeak")->ArgName("threads")->Arg(1)->Arg(2)->Iterations(1);

void MemoryRead(benchmark::State& state) {
  for ([[maybe_unused]] auto _ : state) {
    state.counters["GB/s"] = MeasureMemoryRead(static_cast<int>(state.range(0))) / 1e9;
  }
}
BENCHMARK(MemoryRead)
    ->Name("Machine/MemoryRead")
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->Iterations(1);

struct LinearShape {
  const char* name;
  int64_t out_features;
  int64_t in_features;
  int64_t num_segments;
  int layers;
};

constexpr LinearShape kShapes[] = {
    {"qkv", 2048, 1024, 1, 16},
    {"attention_out", 1024, 1024, kTreeSegments, 16},
    {"gate_up", 5632, 1024, 1, 16},
    {"down", 1024, 2816, kTreeSegments, 16},
    {"lm_head", 32000, 1024, 1, 1},
};

void LinearSpeed(benchmark::State& state,
                 const std::string& isa,
                 DType dtype,
                 const LinearShape& shape) {
  const int64_t num_tokens = state.range(0);
  const int num_threads = static_cast<int>(state.range(1));
  auto backend = MakeBackend(isa, num_threads);
  const int64_t elements = shape.out_features * shape.in_features;
  const std::vector<std::byte> weights = RandomWeights(dtype, elements);
  const MatrixView view = {weights.data(), FormatOf(dtype), shape.out_features, shape.in_features};
  std::vector<std::unique_ptr<PackedLinear>> layers;
  for (int layer = 0; layer < shape.layers; ++layer) {
    auto packed =
        backend->PackLinear({.parts = std::span(&view, 1), .num_segments = shape.num_segments});
    layers.push_back(std::move(*packed));
  }
  const std::vector<float> x = RandomFloats(num_tokens * shape.in_features, 1.0F);
  std::vector<float> y(static_cast<size_t>(num_tokens * shape.out_features));
  const double fma_peak = CachedFmaPeak(num_threads);
  const double memory = CachedMemoryRead(num_threads);

  size_t layer = 0;
  double seconds = 1e30;
  for ([[maybe_unused]] auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    backend->Linear(
        {.num_tokens = num_tokens, .x = x.data(), .y = y.data(), .weight = layers[layer].get()});
    benchmark::DoNotOptimize(y.data());
    benchmark::ClobberMemory();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    seconds = std::min(seconds, taken.count());
    layer = (layer + 1) % layers.size();
  }
  const double flops = 2.0 * static_cast<double>(num_tokens * elements) / seconds;
  const double bytes = static_cast<double>(elements * SizeOf(dtype)) / seconds;
  state.counters["GFLOP/s"] = flops / 1e9;
  state.counters["weight_GB/s"] = bytes / 1e9;
  state.counters["of_fma_peak"] = flops / fma_peak;
  state.counters["of_memory"] = bytes / memory;
}

void RegisterLinear() {
  for (const char* isa : {"avx512", "avx512bf16", "amx", "avx2", "portable"}) {
    if (MakeBackend(isa, /*num_threads=*/1) == nullptr) {
      continue;  // this machine lacks the instructions
    }
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      const bool is_duplicate =
          (std::string(isa) == "avx512bf16" || std::string(isa) == "amx") && dtype != DType::kBF16;
      for (const LinearShape& shape : kShapes) {
        // All shapes with the type of the target, one shape for the comparison of types.
        if (is_duplicate || (dtype != DType::kBF16 && shape.in_features != 2816)) {
          continue;
        }
        const std::string name =
            std::string("Linear/") + isa + "/" + std::string(NameOf(dtype)) + "/" + shape.name;
        auto* bench = benchmark::RegisterBenchmark(name.c_str(),
                                                   [isa, dtype, shape](benchmark::State& state) {
                                                     LinearSpeed(state, isa, dtype, shape);
                                                   });
        bench->ArgNames({"tokens", "threads"})->UseRealTime();
        bench->ArgsProduct({{1, 4, 8, 16, 32, 64, 512}, {1, 2}});
      }
    }
  }
}

void NormSpeed(benchmark::State& state) {
  constexpr int64_t kWidth = 1024;
  const int64_t num_tokens = state.range(0);
  auto backend = MakeBackend("", static_cast<int>(state.range(1)));
  std::vector<float> residual = RandomFloats(num_tokens * kWidth, 1.0F);
  const std::vector<float> delta(residual.size(), 0.0F);
  const std::vector<float> weight(kWidth, 1.0F);
  std::vector<float> out(residual.size());
  for ([[maybe_unused]] auto _ : state) {
    backend->Norm({.kind = NormKind::kRmsNorm,
                   .num_tokens = num_tokens,
                   .width = kWidth,
                   .residual = residual.data(),
                   .delta = delta.data(),
                   .weight = weight.data(),
                   .out = out.data()});
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * num_tokens * kWidth * 4 * int64_t{sizeof(float)});
}
BENCHMARK(NormSpeed)
    ->Name("Norm/rms_with_residual")
    ->ArgNames({"tokens", "threads"})
    ->ArgsProduct({{1, 32, 512}, {1, 2}})
    ->UseRealTime();

void ActivationSpeed(benchmark::State& state, ActivationKind kind) {
  constexpr int64_t kWidth = 2816;
  const int64_t num_tokens = state.range(0);
  auto backend = MakeBackend("", static_cast<int>(state.range(1)));
  const std::vector<float> in = RandomFloats(num_tokens * kWidth * 2, 1.0F);
  std::vector<float> out(in.size() / 2);
  for ([[maybe_unused]] auto _ : state) {
    backend->Activate({.kind = kind,
                       .gated = true,
                       .num_tokens = num_tokens,
                       .width = kWidth,
                       .in = in.data(),
                       .out = out.data()});
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * num_tokens * kWidth * 3 * int64_t{sizeof(float)});
}
BENCHMARK_CAPTURE(ActivationSpeed, silu, ActivationKind::kSilu)
    ->ArgNames({"tokens", "threads"})
    ->ArgsProduct({{1, 32, 512}, {1, 2}})
    ->UseRealTime();
BENCHMARK_CAPTURE(ActivationSpeed, gelu, ActivationKind::kGelu)
    ->ArgNames({"tokens", "threads"})
    ->ArgsProduct({{32}, {1}})
    ->UseRealTime();

// The logits are restored before each call: penalties change them.
void SampleSpeed(benchmark::State& state, const SamplingParams& params) {
  const int64_t vocab = state.range(0);
  const auto num_rows = static_cast<size_t>(state.range(1));
  auto backend = MakeBackend("", static_cast<int>(state.range(2)));
  const std::vector<float> logits = RandomFloats(vocab * state.range(1), 2.5F);
  std::vector<float> work = logits;
  const std::vector<TokenId> context(256, 17);
  std::vector<SamplingRow> rows(num_rows, {&params, context, context});
  std::vector<TokenId> tokens(num_rows);
  std::vector<float> logprobs(num_rows);
  std::vector<SampledLogprob> top(num_rows * kMaxLogprobs);
  const auto finite = std::make_unique<bool[]>(num_rows);
  const bool changes_logits = params.repetition_penalty != 1.0F;
  for ([[maybe_unused]] auto _ : state) {
    if (changes_logits) {
      state.PauseTiming();
      work = logits;
      state.ResumeTiming();
    }
    backend->Sample({.num_rows = static_cast<int32_t>(num_rows),
                     .vocab_size = static_cast<int32_t>(vocab),
                     .row_stride = vocab,
                     .logits = work.data(),
                     .rows = rows.data(),
                     .token_ids = tokens.data(),
                     .logprobs = logprobs.data(),
                     .finite = finite.get(),
                     .top_logprobs = top.data(),
                     .top_logprobs_stride = kMaxLogprobs});
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * state.range(1));  // rows
}

void RegisterSampling() {
  std::map<std::string, SamplingParams> kinds;
  kinds["greedy"].temperature = 0.0F;
  kinds["greedy_with_logprob"] = {.temperature = 0.0F, .num_logprobs = 0};
  kinds["greedy_with_20_logprobs"] = {.temperature = 0.0F, .num_logprobs = 20};
  kinds["temperature"] = {};
  kinds["top_p"] = {.top_p = 0.9F};
  kinds["top_p_flat"] = {.temperature = 10.0F, .top_p = 0.9F};
  kinds["top_k_top_p"] = {.top_k = 50, .top_p = 0.9F};
  kinds["min_p"] = {.min_p = 0.05F};
  kinds["penalties"] = {.temperature = 0.0F, .repetition_penalty = 1.1F};
  for (const auto& [name, params] : kinds) {
    auto* bench = benchmark::RegisterBenchmark(
        ("Sample/" + name).c_str(),
        [params = params](benchmark::State& state) { SampleSpeed(state, params); });
    bench->ArgNames({"vocab", "rows", "threads"})->UseRealTime();
    bench->ArgsProduct({{32000, 128256}, {1, 32}, {1, 2}});
  }
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  quire::RegisterLinear();
  quire::RegisterSampling();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
