// Paged attention of one layer, in the shape of a 254 M parameter Llama (16 heads, 8 KV heads,
// head_dim 64, blocks of 16 tokens, bf16), beside what the memory can do.
//
//   decode/<batch>/<context>/<threads>     one query per sequence
//   prefill/<tokens>/<threads>             one prompt from its first token
//   read_memory/<threads>                  a plain sum over memory far larger than the caches
//
// GB/s counts each K and V byte of the context once; GFLOP/s counts 4 * head_dim a (head,
// position). us/token/layer is the time of one query of all heads. The pool of a decode is as large
// as 16 layers' worth, as in the model, so that no cache holds it, and the calls go through all
// layers.
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <numeric>
#include <thread>
#include <vector>

#include "benchmark/benchmark.h"

#include "kernels/cpu/cpu_backend.h"

namespace quire {
namespace {

constexpr int32_t kNumLayers = 16;
constexpr int32_t kNumHeads = 16;
constexpr int32_t kNumKvHeads = 8;
constexpr int32_t kHeadDim = 64;
constexpr int32_t kBlockSize = 16;
constexpr int64_t kRowWidth = (kNumHeads + 2 * kNumKvHeads) * kHeadDim;

struct Free {
  void operator()(uint16_t* p) const { ::operator delete[](p, std::align_val_t{64}); }
};
using Pool = std::unique_ptr<uint16_t[], Free>;

// Every element the bf16 number 1/128 times its low bits: finite and not all the same.
Pool MakePool(const KvCacheLayout& layout, int64_t num_blocks) {
  int64_t elements = layout.block_stride * num_blocks;
  Pool pool(new (std::align_val_t{64}) uint16_t[static_cast<size_t>(elements)]);
  for (int64_t i = 0; i < elements; ++i) {
    pool[static_cast<size_t>(i)] = static_cast<uint16_t>(0x3C00 + (i * 37 % 251));
  }
  return pool;
}

// A batch of equal sequences whose blocks lie all over the pool.
class Batch {
 public:
  Batch(int32_t num_seqs, int32_t query_len, int32_t seq_len, int num_threads) {
    CpuBackendOptions options;
    options.num_threads = num_threads;
    backend_ = std::move(CreateCpuBackend(options).value());
    KvCacheSpec spec{kNumLayers, kNumKvHeads, kHeadDim, kBlockSize, DType::kBF16};
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
    auto num_tokens = static_cast<size_t>(query_start_.back());
    q_.assign(num_tokens * kRowWidth, 0.25F);
    out_.resize(num_tokens * kNumHeads * kHeadDim);

    params_.num_seqs = num_seqs;
    params_.num_heads = kNumHeads;
    params_.q = q_.data();
    params_.q_row_stride = kRowWidth;
    params_.out = out_.data();
    params_.scale = 0.125F;
    params_.query_start = query_start_.data();
    params_.seq_lens = seq_lens_.data();
    params_.block_tables = block_tables_.data();
    params_.max_blocks_per_seq = blocks_per_seq;
    params_.cache = {pool_.get(), num_blocks, layout};
  }

  // All layers once.
  void Run() {
    for (int32_t layer = 0; layer < kNumLayers; ++layer) {
      params_.layer = layer;
      backend_->PagedAttention(params_);
    }
    benchmark::DoNotOptimize(out_.data());
  }

 private:
  std::unique_ptr<KernelBackend> backend_;
  Pool pool_;
  std::vector<BlockId> block_tables_;
  std::vector<int32_t> query_start_;
  std::vector<int32_t> seq_lens_;
  std::vector<float> q_;
  std::vector<float> out_;
  PagedAttentionParams params_;
};

void Report(benchmark::State& state, double tokens, double positions_read, double positions_used) {
  using benchmark::Counter;
  double layers = static_cast<double>(state.iterations()) * kNumLayers;
  double bytes = positions_read * 2 * kNumKvHeads * kHeadDim * 2;
  double flops = positions_used * kNumHeads * 4.0 * kHeadDim;
  state.counters["GB/s"] = Counter(layers * bytes / 1e9, Counter::kIsRate);
  state.counters["GFLOP/s"] = Counter(layers * flops / 1e9, Counter::kIsRate);
  state.counters["us/token/layer"] =
      Counter(layers * tokens / 1e6, Counter::kIsRate | Counter::kInvert);
}

void BM_Decode(benchmark::State& state) {
  auto num_seqs = static_cast<int32_t>(state.range(0));
  auto context = static_cast<int32_t>(state.range(1));
  Batch batch(num_seqs, 1, context, static_cast<int>(state.range(2)));
  batch.Run();
  for (auto _ : state) {
    batch.Run();
  }
  double positions = static_cast<double>(num_seqs) * context;
  Report(state, num_seqs, positions, positions);
}
BENCHMARK(BM_Decode)
    ->Name("decode")
    ->ArgsProduct({{1, 8, 32}, {128, 1024, 4096}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

void BM_Prefill(benchmark::State& state) {
  auto tokens = static_cast<int32_t>(state.range(0));
  Batch batch(1, tokens, tokens, static_cast<int>(state.range(1)));
  batch.Run();
  for (auto _ : state) {
    batch.Run();
  }
  Report(state, tokens, tokens, 0.5 * tokens * (tokens + 1.0));
}
BENCHMARK(BM_Prefill)
    ->Name("prefill")
    ->ArgsProduct({{512, 2048}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

uint64_t SumOf(const uint64_t* data, size_t size) {
  return std::accumulate(data, data + size, uint64_t{0});
}

void BM_ReadMemory(benchmark::State& state) {
  std::vector<uint64_t> data((size_t{512} << 20) / sizeof(uint64_t), 1);
  auto num_threads = static_cast<size_t>(state.range(0));
  size_t part = data.size() / num_threads;
  for (auto _ : state) {
    std::vector<std::thread> threads;
    for (size_t t = 0; t < num_threads; ++t) {
      threads.emplace_back(
          [&, t] { benchmark::DoNotOptimize(SumOf(data.data() + t * part, part)); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
  double bytes = static_cast<double>(data.size() * sizeof(uint64_t));
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(state.iterations()) * bytes / 1e9,
                                              benchmark::Counter::kIsRate);
}
BENCHMARK(BM_ReadMemory)->Name("read_memory")->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace quire

BENCHMARK_MAIN();
