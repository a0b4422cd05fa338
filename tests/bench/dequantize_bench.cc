// Speed of the weight formats of GGUF, one thread, from and to the processor's cache.
//
//   build/bench/dequantize_bench
//
// Dequantize and Quantize report bytes of fp32 per second, Check the bytes of blocks.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"

#include "kernels/api/dequantize.h"
#include "kernels/api/quantize.h"
#include "kernels/api/weight_check.h"
#include "kernels/api/weight_format.h"

namespace quire {
namespace {

constexpr int64_t kWeights = 64 * 1024;

std::vector<std::byte> Blocks(WeightFormat format) {
  // The byte makes every scale finite.
  return std::vector<std::byte>(static_cast<size_t>(NumBytes(format, kWeights).value()),
                                std::byte{0x35});
}

void BM_Dequantize(benchmark::State& state, WeightFormat format) {
  const std::vector<std::byte> blocks = Blocks(format);
  std::vector<float> weights(kWeights);
  for (auto _ : state) {
    Dequantize(format, blocks, weights);
    benchmark::DoNotOptimize(weights.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * kWeights * int64_t{sizeof(float)});
}

void BM_Check(benchmark::State& state, WeightFormat format) {
  const std::vector<std::byte> blocks = Blocks(format);
  for (auto _ : state) {
    benchmark::DoNotOptimize(FirstNotFiniteBlock(format, blocks));
  }
  state.SetBytesProcessed(state.iterations() * std::ssize(blocks));
}

void BM_Quantize(benchmark::State& state, WeightFormat format) {
  std::vector<float> weights(kWeights);
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = static_cast<float>(i * 37 % 101) - 50.0F;
  }
  std::vector<std::byte> blocks = Blocks(format);
  for (auto _ : state) {
    Quantize(format, weights, blocks);
    benchmark::DoNotOptimize(blocks.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * kWeights * int64_t{sizeof(float)});
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  for (const quire::WeightFormatInfo& info : quire::kWeightFormats) {
    const std::string name(info.name);
    benchmark::RegisterBenchmark(("Dequantize/" + name).c_str(), quire::BM_Dequantize, info.format);
    benchmark::RegisterBenchmark(("Check/" + name).c_str(), quire::BM_Check, info.format);
  }
  for (const quire::WeightFormat format :
       {quire::WeightFormat::kQ8_0, quire::WeightFormat::kQ4_0}) {
    benchmark::RegisterBenchmark(
        ("Quantize/" + std::string(quire::NameOf(format))).c_str(), quire::BM_Quantize, format);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
