// Paged attention through all layers of two models, beside what the memory can do.
//
//   small, a 254 M parameter Llama: 16 layers, 16 heads, 8 KV heads, head_dim 64
//   tiny:                            6 layers,  6 heads, 6 KV heads, head_dim 48
//
//   <model>_decode/<batch>/<context>/<threads>    one query per sequence
//   <model>_prefill/<tokens>/<threads>            one prompt from its first token
//   <model>_decode_<dtype>/... and prefill        the same from a cache of another type
//   read_memory/<threads>                         a plain sum over 512 MiB
//
// bf16 where no type is named, blocks of 16 tokens that lie all over the pool. GB/s counts each K
// and V byte of the context once, with its share of the scales; GFLOP/s counts 4 * head_dim a
// (head, position); time/token/layer is that of one query of all heads. On a shared machine compare
// the CPU time of one thread.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"

#include "kernels/cpu/cpu_backend.h"

namespace quire {
namespace {

struct Model {
  int32_t num_layers;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;

  int64_t row_width() const { return (num_heads + int64_t{2} * num_kv_heads) * head_dim; }
};

constexpr Model kSmall = {16, 16, 8, 64};
constexpr Model kTiny = {6, 6, 6, 48};
constexpr int32_t kBlockSize = 16;

struct Free {
  void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
};
using Pool = std::unique_ptr<std::byte[], Free>;

void FillScales(const KvCacheLayout& layout, int64_t num_blocks, std::byte* pool) {
  const std::vector<float> scales(size_t{2} * static_cast<size_t>(layout.block_size_tokens), 0.01F);
  for (BlockId block = 0; block < num_blocks; ++block) {
    for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
      for (int32_t head = 0; head < layout.num_kv_heads; ++head) {
        std::memcpy(pool + layout.KeyOffset(block, layer, head) + layout.key_scale_offset,
                    scales.data(),
                    scales.size() * sizeof(float));
      }
    }
  }
}

// Small finite numbers of any type, not all the same.
Pool MakePool(const KvCacheLayout& layout, int64_t num_blocks) {
  const auto bytes = static_cast<size_t>(layout.block_bytes() * num_blocks);
  Pool pool(new (std::align_val_t{64}) std::byte[bytes]);
  for (size_t i = 0; i + 1 < bytes; i += 2) {
    const auto bits = static_cast<uint16_t>(0x3C00 + i / 2 * 37 % 251);
    std::memcpy(pool.get() + i, &bits, sizeof(bits));
  }
  if (layout.has_scales()) {
    FillScales(layout, num_blocks, pool.get());
  }
  return pool;
}

// A batch of equal sequences whose blocks lie all over the pool.
class Batch {
 public:
  Batch(const Model& model,
        DType dtype,
        int32_t num_seqs,
        int32_t query_len,
        int32_t seq_len,
        int num_threads)
      : num_layers_(model.num_layers) {
    CpuBackendOptions options;
    options.num_threads = num_threads;
    backend_ = std::move(CreateCpuBackend(options).value());
    KvCacheSpec spec{model.num_layers, model.num_kv_heads, model.head_dim, kBlockSize, dtype};
    KvCacheLayout layout = backend_->LayoutFor(spec);
    int32_t blocks_per_seq = (seq_len + kBlockSize - 1) / kBlockSize;
    int64_t num_blocks = int64_t{num_seqs} * blocks_per_seq;
    pool_ = MakePool(layout, num_blocks);
    for (int64_t i = 0; i < num_blocks; ++i) {
      block_tables_.push_back(static_cast<BlockId>(i * 7919 % num_blocks));
    }
    query_start_.push_back(0);
    for (int32_t s = 0; s < num_seqs; ++s) {
      query_start_.push_back(query_start_.back() + query_len);
      seq_lens_.push_back(seq_len);
    }
    int64_t num_tokens = query_start_.back();
    q_.assign(static_cast<size_t>(num_tokens * model.row_width()), 0.25F);
    out_.resize(static_cast<size_t>(num_tokens * model.num_heads * model.head_dim));

    params_.num_seqs = num_seqs;
    params_.num_heads = model.num_heads;
    params_.q = q_.data();
    params_.q_row_stride = model.row_width();
    params_.out = out_.data();
    params_.scale = 0.125F;
    params_.query_start = query_start_.data();
    params_.seq_lens = seq_lens_.data();
    params_.block_tables = block_tables_.data();
    params_.max_blocks_per_seq = blocks_per_seq;
    params_.cache = {pool_.get(), num_blocks, layout};
  }

  double bytes_per_position_and_layer() const {
    const KvCacheLayout& layout = params_.cache.layout;
    return static_cast<double>(layout.block_bytes()) / layout.num_layers / kBlockSize;
  }

  // All layers once.
  void Run() {
    for (int32_t layer = 0; layer < num_layers_; ++layer) {
      params_.layer = layer;
      backend_->PagedAttention(params_);
    }
    benchmark::DoNotOptimize(out_.data());
  }

 private:
  int32_t num_layers_;
  std::unique_ptr<KernelBackend> backend_;
  Pool pool_;
  std::vector<BlockId> block_tables_;
  std::vector<int32_t> query_start_;
  std::vector<int32_t> seq_lens_;
  std::vector<float> q_;
  std::vector<float> out_;
  PagedAttentionParams params_;
};

struct Work {
  double tokens;          // queries
  double positions_read;  // whose K and V are read
  double pairs;           // (query, position)
};

void Report(benchmark::State& state, const Model& model, const Batch& batch, const Work& work) {
  using benchmark::Counter;
  double layers = static_cast<double>(state.iterations()) * model.num_layers;
  double bytes = work.positions_read * batch.bytes_per_position_and_layer();
  double flops = work.pairs * model.num_heads * 4.0 * model.head_dim;
  state.counters["GB/s"] = Counter(layers * bytes / 1e9, Counter::kIsRate);
  state.counters["GFLOP/s"] = Counter(layers * flops / 1e9, Counter::kIsRate);
  state.counters["time/token/layer"] =
      Counter(layers * work.tokens, Counter::kIsRate | Counter::kInvert);
}

void Decode(benchmark::State& state, const Model& model, DType dtype) {
  auto num_seqs = static_cast<int32_t>(state.range(0));
  auto context = static_cast<int32_t>(state.range(1));
  Batch batch(model, dtype, num_seqs, 1, context, static_cast<int>(state.range(2)));
  batch.Run();
  for ([[maybe_unused]] auto _ : state) {
    batch.Run();
  }
  double positions = static_cast<double>(num_seqs) * context;
  Report(state, model, batch, {static_cast<double>(num_seqs), positions, positions});
}

void Prefill(benchmark::State& state, const Model& model, DType dtype) {
  auto tokens = static_cast<int32_t>(state.range(0));
  Batch batch(model, dtype, 1, tokens, tokens, static_cast<int>(state.range(1)));
  batch.Run();
  for ([[maybe_unused]] auto _ : state) {
    batch.Run();
  }
  double size = tokens;
  Report(state, model, batch, {size, size, 0.5 * size * (size + 1.0)});
}

BENCHMARK_CAPTURE(Decode, small, kSmall, DType::kBF16)
    ->Name("small_decode")
    ->ArgsProduct({{1, 4, 8, 16, 32}, {128, 1024, 4096}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Prefill, small, kSmall, DType::kBF16)
    ->Name("small_prefill")
    ->ArgsProduct({{512, 2048}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Decode, tiny, kTiny, DType::kBF16)
    ->Name("tiny_decode")
    ->ArgsProduct({{1, 8, 32}, {128, 1024}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Prefill, tiny, kTiny, DType::kBF16)
    ->Name("tiny_prefill")
    ->ArgsProduct({{512, 2048}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

const bool g_types_are_registered = [] {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3, DType::kInt8}) {
    const std::string name(NameOf(dtype));
    benchmark::RegisterBenchmark(("small_decode_" + name).c_str(), Decode, kSmall, dtype)
        ->ArgsProduct({{1}, {4096, 16384}, {1, 2}})
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(("small_prefill_" + name).c_str(), Prefill, kSmall, dtype)
        ->ArgsProduct({{2048}, {1, 2}})
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  }
  return true;
}();

uint64_t SumOf(const uint64_t* data, size_t size) {
  return std::accumulate(data, data + size, uint64_t{0});
}

void ReadMemory(benchmark::State& state) {
  std::vector<uint64_t> data((size_t{512} << 20) / sizeof(uint64_t), 1);
  auto num_threads = static_cast<size_t>(state.range(0));
  size_t part = data.size() / num_threads;
  for ([[maybe_unused]] auto _ : state) {
    std::vector<std::thread> threads;
    for (size_t t = 1; t < num_threads; ++t) {
      threads.emplace_back(
          [&, t] { benchmark::DoNotOptimize(SumOf(data.data() + t * part, part)); });
    }
    benchmark::DoNotOptimize(SumOf(data.data(), part));
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
  double bytes = static_cast<double>(data.size() * sizeof(uint64_t));
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(state.iterations()) * bytes / 1e9,
                                              benchmark::Counter::kIsRate);
}
BENCHMARK(ReadMemory)
    ->Name("read_memory")
    ->Arg(1)
    ->Arg(2)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace quire

BENCHMARK_MAIN();
