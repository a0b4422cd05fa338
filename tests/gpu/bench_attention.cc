// Paged attention of one layer, decode and prefill. Decode is bound by reading keys and values: its
// floor is a copy of as many bytes. Prefill is bound by products. The half of them that the causal
// mask hides is not counted.
#include "tests/gpu/bench_attention.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace quire::gpu {
namespace {

// Bounds the error of a row of bf16 outputs with bf16 weights. The tests, on small shapes, have a
// stricter bound.
constexpr double kMaxError = 8e-3;

struct DecodeCase {
  AttentionShape shape;
  std::vector<int32_t> seq_lens;
  std::string name;          // of the lengths
  int32_t split_tokens = 0;  // 0: as the backend chooses
  double ctas_over_grid = 1.0;
  PoolLayers layers;
};

DecodeCase Uniform(const AttentionShape& shape, int32_t batch, int32_t seq_len) {
  return {shape,
          std::vector<int32_t>(static_cast<size_t>(batch), seq_len),
          std::to_string(batch) + " x " + std::to_string(seq_len)};
}

// Lengths from 128 to 16384; each length occurs twice as often as its double.
DecodeCase Skewed(const AttentionShape& shape) {
  DecodeCase skewed = {shape, {}, "skewed, 128 to 16384"};
  int32_t seq_len = 128;
  for (int32_t count = 128; count > 0; count /= 2) {
    for (int32_t i = 0; i < count; ++i) {
      skewed.seq_lens.push_back(seq_len + i);  // not all multiples of everything
    }
    seq_len *= 2;
  }
  return skewed;
}

void Measure(Bench& bench, KvPool& pool, const DecodeCase& decode) {
  const AttentionShape& shape = decode.shape;
  std::vector<SequenceLengths> sequences;
  for (const int32_t seq_len : decode.seq_lens) {
    sequences.push_back({.query_len = 1, .seq_len = seq_len});
  }
  auto batch = AttentionBatch::Make(bench, pool, shape, sequences, decode.layers);
  const int32_t split_tokens =
      decode.split_tokens > 0 ? decode.split_tokens : SplitTokensFor(shape);
  const auto num_ctas =
      std::max(1, static_cast<int32_t>(decode.ctas_over_grid * DecodeCtasFor(shape)));
  Figure figure(
      "decode",
      shape.Name() + ", " + decode.name +
          (decode.split_tokens > 0 ? ", split " + std::to_string(split_tokens) : "") +
          (decode.ctas_over_grid != 1.0 ? ", " + std::to_string(num_ctas) + " CTAs" : ""));
  if (!batch.has_value()) {
    bench.report().Say("  " + shape.Name() + ", " + decode.name + ": not enough memory");
    return;
  }
  DecodeScratch scratch(bench, *batch, split_tokens);
  shape.AddParams(figure);
  const bool uniform =
      std::count(decode.seq_lens.begin(), decode.seq_lens.end(), decode.seq_lens[0]) ==
      std::ssize(decode.seq_lens);
  figure.Param("batch", decode.seq_lens.size());
  figure.Param("seq_len", uniform ? decode.seq_lens[0] : 0);
  figure.Param("split_tokens", split_tokens).Param("num_ctas", num_ctas);
  if (decode.layers.num_layers > 0) {
    figure.Param("num_layers", decode.layers.num_layers);
    figure.Param("layer_major", decode.layers.layer_major).Param("pool_bytes", pool.bytes());
  }
  figure.timing = bench.Measure(batch->num_sets(), [&](int set) {
    return Decode(batch->Args(set), scratch.Plan(*batch, num_ctas), shape.dtype, bench.stream());
  });
  figure.work.bytes = batch->LeastWork().bytes;
  figure.error = batch->ProbedError(bench);
  figure.ok = figure.error <= kMaxError && batch->IsFinite(bench);
  bench.Add(figure);
}

std::vector<DecodeCase> QuickDecodeCases(const Bench& bench) {
  const AttentionShape shape;
  if (bench.rehearse()) {
    const AttentionShape small = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 64};
    AttentionShape e4m3 = small;
    e4m3.cache_dtype = DType::kF8E4M3;
    return {Uniform(small, 2, 300), Uniform(e4m3, 1, 40)};
  }
  return {Uniform(shape, 1, 2048), Uniform(shape, 32, 8192), Uniform(shape, 128, 512)};
}

// The default shape at all sizes, then the tuning parameters at one size, then the other cases.
std::vector<DecodeCase> AllDecodeCases() {
  const AttentionShape shape;
  std::vector<DecodeCase> cases;
  for (const int32_t seq_len : {8192, 2048, 512, 32768}) {
    for (const int32_t batch : {32, 128, 8, 1}) {
      cases.push_back(Uniform(shape, batch, seq_len));
    }
  }
  const DecodeCase middle = Uniform(shape, 32, 8192);
  for (const double ctas : {1.0 / 3.0, 2.0 / 3.0, 2.0, 4.0}) {
    cases.push_back(middle);
    cases.back().ctas_over_grid = ctas;
  }
  for (const int32_t split_tokens : {128, 256, 1024, 2048}) {
    for (const int32_t batch : {1, 8, 32}) {
      cases.push_back(Uniform(shape, batch, 8192));  // NOLINT(*-magic-numbers)
      cases.back().split_tokens = split_tokens;
    }
  }
  for (const int32_t block_size : {8, 32, 64, 128}) {
    cases.push_back(middle);
    cases.back().shape.block_size_tokens = block_size;
  }
  for (const int32_t head_dim : {64, 80, 96, 112, 256}) {
    cases.push_back(middle);
    cases.back().shape.head_dim = head_dim;
  }
  cases.push_back(Skewed(shape));
  cases.push_back(Uniform(shape, 64, 4096));
  for (const DType cache_dtype : {DType::kF8E4M3, DType::kBF16}) {
    for (const int32_t block_size : {16, 64}) {
      for (const auto& [heads, kv_heads] :
           {std::pair(32, 8), std::pair(64, 8), std::pair(28, 4), std::pair(32, 32)}) {
        const AttentionShape other = {.num_heads = heads,
                                      .num_kv_heads = kv_heads,
                                      .block_size_tokens = block_size,
                                      .cache_dtype = cache_dtype};
        const bool is_done =
            heads == 32 && kv_heads == 8 && block_size == 16 && cache_dtype == DType::kBF16;
        for (const int32_t batch : {1, 8, 32, 128}) {
          for (const int32_t seq_len : {512, 2048, 8192, 32768}) {
            if (!is_done) {
              cases.push_back(Uniform(other, batch, seq_len));
            }
          }
        }
      }
    }
  }
  // Groups the cases by type, because the pool is filled anew when the type changes.
  std::stable_sort(cases.begin(), cases.end(), [](const DecodeCase& a, const DecodeCase& b) {
    return SizeOf(a.shape.cache_dtype) > SizeOf(b.shape.cache_dtype);
  });
  return cases;
}

// Measures with nearly all memory as the pool of an 8B model. A block is a page of 2 MiB, of which
// each layer reads a 32nd: does translating so many addresses cost bandwidth? For comparison there
// are blocks of few layers, and a pool in which each layer's blocks lie together.
void MeasureReach(Bench& bench) {
  constexpr PoolSize kNearlyAll = {.share_of_free = 0.93, .max_bytes = 115e9};
  constexpr double kGiga = 1e9;
  KvPool pool(bench, kNearlyAll);
  const AttentionShape shape = bench.rehearse() ? AttentionShape{4, 2, 64} : AttentionShape{};
  DecodeCase decode =
      Uniform(shape, bench.Small(64, 2), bench.Small(4096, 40));  // NOLINT(*-magic-numbers)
  const std::string lengths = decode.name;
  for (const PoolLayers& layers : {PoolLayers{32}, PoolLayers{4}, PoolLayers{32, true}}) {
    if (bench.IsOutOfTime()) {
      return;
    }
    decode.layers = layers;
    decode.name = lengths + ", " + std::to_string(layers.num_layers) +
                  (layers.layer_major ? " layers one after the other in " : " layers a block in ") +
                  std::to_string(std::lround(static_cast<double>(pool.bytes()) / kGiga)) + " GB";
    Measure(bench, pool, decode);
  }
}

void MeasurePlan(Bench& bench) {
  const auto batch = static_cast<size_t>(bench.Small(128, 8));
  Buffer seq_lens = Buffer::Of(std::vector<int32_t>(batch, 4096));
  Buffer split_start(static_cast<int64_t>((batch + 1) * sizeof(int32_t)));
  Figure figure("decode", "plan of " + std::to_string(batch) + " sequences");
  figure.timing = bench.Measure(1, [&](int) {
    return PlanDecode({.seq_lens = seq_lens.as<int32_t>()},
                      {.num_decodes = static_cast<int32_t>(batch)},
                      split_start.as<int32_t>(),
                      bench.stream());
  });
  bench.Add(figure);
}

struct PrefillCase {
  AttentionShape shape;
  int32_t batch = 1;
  int32_t chunk = 2048;
  int32_t context = 0;
  PrefillKernel kernel = PrefillKernel::kMma;
};

void Measure(Bench& bench, KvPool& pool, const PrefillCase& prefill) {
  const AttentionShape& shape = prefill.shape;
  const std::vector<SequenceLengths> sequences(
      static_cast<size_t>(prefill.batch),
      {.query_len = prefill.chunk, .seq_len = prefill.context + prefill.chunk});
  auto batch = AttentionBatch::Make(bench, pool, shape, sequences);
  const std::string name = shape.Name() + ", " + std::to_string(prefill.batch) + " x " +
                           std::to_string(prefill.chunk) + " after " +
                           std::to_string(prefill.context) +
                           (prefill.kernel == PrefillKernel::kWgmma ? ", wgmma" : "");
  if (!batch.has_value()) {
    bench.report().Say("  " + name + ": not enough memory");
    return;
  }
  const std::vector<PrefillItem> items = PrefillItemsFor(*batch);
  Buffer device_items = Buffer::Of(items);
  Figure figure("prefill", name);
  shape.AddParams(figure);
  figure.Param("batch", prefill.batch).Param("chunk", prefill.chunk);
  figure.Param("context", prefill.context);
  figure.timing = bench.Measure(batch->num_sets(), [&](int set) {
    return Prefill(batch->Args(set),
                   {.items = device_items.as<PrefillItem>(),
                    .num_items = static_cast<int32_t>(items.size()),
                    .kernel = prefill.kernel},
                   shape.dtype,
                   bench.stream());
  });
  figure.work = batch->LeastWork();
  figure.error = batch->ProbedError(bench);
  figure.ok = figure.error <= kMaxError && batch->IsFinite(bench);
  bench.Add(figure);
}

// Whether the wgmma kernel supports the device and the shape; the mma kernel supports all.
bool HasWgmma(const Bench& bench, const AttentionShape& shape) {
  constexpr int32_t kCapability = 90;
  const bool is_whole = shape.head_dim == 64 || shape.head_dim % 128 == 0;
  return bench.device().compute_capability == kCapability && is_whole &&
         shape.cache_dtype == shape.dtype;
}

std::vector<PrefillCase> PrefillCases(const Bench& bench) {
  const AttentionShape shape;
  if (bench.rehearse()) {
    return {{{.num_heads = 4, .num_kv_heads = 2, .head_dim = 64}, 2, 40, 24}};
  }
  if (bench.quick()) {
    return {{shape, 1, 2048, 0}, {shape, 1, 8192, 0}};
  }
  std::vector<PrefillCase> cases;
  for (const int32_t context : {0, 8192, 32768}) {
    for (const int32_t chunk : {8192, 2048, 512}) {
      cases.push_back({shape, 1, chunk, context});
    }
  }
  cases.push_back({shape, 16, 512, 0});
  for (const auto& [heads, kv_heads] : {std::pair(64, 8), std::pair(28, 4), std::pair(32, 32)}) {
    const AttentionShape other = {.num_heads = heads, .num_kv_heads = kv_heads};
    cases.push_back({other, 1, 8192, 0});
    cases.push_back({other, 1, 2048, 8192});
  }
  for (const int32_t head_dim : {64, 96, 256}) {
    const AttentionShape other = {.head_dim = head_dim};
    cases.push_back({other, 1, 8192, 0});
  }
  const AttentionShape block_64 = {.block_size_tokens = 64};
  const AttentionShape e4m3 = {.cache_dtype = DType::kF8E4M3};
  cases.push_back({block_64, 1, 8192, 0});
  cases.push_back({e4m3, 1, 8192, 0});
  return cases;
}

}  // namespace

void MeasureDecode(Bench& bench) {
  MeasurePlan(bench);
  MeasureReach(bench);
  KvPool pool(bench);
  for (const DecodeCase& decode : bench.quick() ? QuickDecodeCases(bench) : AllDecodeCases()) {
    if (bench.IsOutOfTime()) {
      return;
    }
    Measure(bench, pool, decode);
  }
}

void MeasurePrefill(Bench& bench) {
  KvPool pool(bench);
  for (const PrefillCase& prefill : PrefillCases(bench)) {
    if (bench.IsOutOfTime()) {
      return;
    }
    if (HasWgmma(bench, prefill.shape)) {
      PrefillCase with_wgmma = prefill;
      with_wgmma.kernel = PrefillKernel::kWgmma;
      Measure(bench, pool, with_wgmma);
    }
    Measure(bench, pool, prefill);
  }
}

}  // namespace quire::gpu
