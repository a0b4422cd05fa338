// Paged attention of one layer: decode, and steps of 2 to 16 queries per sequence. Both are bound
// by reading keys and values, so their floor is the time of a copy that moves as many bytes.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/bench_attention.h"
#include "tests/gpu/peer_library.h"

namespace quire::gpu {
namespace {

struct DecodeCase {
  AttentionShape shape;
  std::vector<int32_t> seq_lens;
  std::string name;          // describes the lengths
  int32_t split_tokens = 0;  // 0: SplitTokensFor
  double ctas_over_grid = 1.0;
  PoolLayers layers;
  int32_t query_len = 1;

  std::string Name() const {
    return shape.Name() + ", " + name +
           (split_tokens > 0 ? ", split " + std::to_string(split_tokens) : "") +
           (query_len > 1 ? ", " + std::to_string(query_len) + " queries" : "");
  }
};

DecodeCase Uniform(const AttentionShape& shape, int32_t batch, int32_t seq_len) {
  return {shape,
          std::vector<int32_t>(static_cast<size_t>(batch), seq_len),
          std::to_string(batch) + " x " + std::to_string(seq_len)};
}

DecodeCase WithQueries(const AttentionShape& shape,
                       int32_t batch,
                       int32_t seq_len,
                       int32_t query_len) {
  DecodeCase decode = Uniform(shape, batch, seq_len);
  decode.query_len = query_len;
  return decode;
}

// Lengths from 128 to 16384; each length occurs twice as often as its double.
DecodeCase Skewed(const AttentionShape& shape) {
  DecodeCase skewed = {shape, {}, "skewed, 128 to 16384"};
  int32_t seq_len = 128;
  for (int32_t count = 128; count > 0; count /= 2) {
    for (int32_t i = 0; i < count; ++i) {
      skewed.seq_lens.push_back(seq_len + i);  // most lengths are no round numbers
    }
    seq_len *= 2;
  }
  return skewed;
}

void AddParams(Figure& figure, const DecodeCase& decode, int64_t pool_bytes) {
  const std::vector<int32_t>& lengths = decode.seq_lens;
  const bool uniform =
      std::count(lengths.begin(), lengths.end(), lengths[0]) == std::ssize(lengths);
  figure.Param("batch", lengths.size());
  figure.Param("seq_len", uniform ? lengths[0] : 0);
  figure.Param("query_len", decode.query_len);
  if (decode.layers.num_layers > 0) {
    figure.Param("num_layers", decode.layers.num_layers);
    figure.Param("layer_major", decode.layers.layer_major).Param("pool_bytes", pool_bytes);
  }
}

// Adds the kernels for a case. With several queries per sequence, prefill is among them; it needs
// no grid.
void AddKernels(Bench& bench, const DecodeCase& decode, AttentionInTurn& in_turn) {
  for (const DecodeChoice& choice : kDecodeChoices) {
    if (IsChosen(bench.options().decode_kernels, choice)) {
      in_turn.AddDecode(choice,
                        {.split_tokens = decode.split_tokens,
                         .ctas_over_grid = decode.ctas_over_grid,
                         .max_query_tokens = decode.query_len});
    }
  }
  if (decode.split_tokens == 0 && decode.ctas_over_grid == 1.0) {
    in_turn.AddPeer(kPeerOfDecode);
  }
  if (decode.query_len > 1) {
    for (const PrefillChoice& choice : kPrefillChoices) {
      if (IsChosen(bench.options().prefill_kernels, choice)) {
        in_turn.AddPrefill(choice, "prefill ");
      }
    }
  }
}

void Measure(Bench& bench, KvPool& pool, const DecodeCase& decode) {
  if (!bench.IsWantedCase(decode.Name())) {
    return;
  }
  std::vector<SequenceLengths> sequences;
  for (const int32_t seq_len : decode.seq_lens) {
    sequences.push_back({.query_len = decode.query_len, .seq_len = seq_len});
  }
  auto batch = AttentionBatch::Make(bench, pool, decode.shape, sequences, decode.layers);
  if (!batch.has_value()) {
    bench.report().Say("  " + decode.Name() + ": not enough memory");
    return;
  }
  AttentionInTurn in_turn(bench, *batch, "decode", decode.Name());
  AddKernels(bench, decode, in_turn);
  in_turn.Measure([&](Figure& figure) {
    AddParams(figure, decode, pool.bytes());
    figure.work.bytes = batch->LeastWork().bytes;
  });
}

std::vector<DecodeCase> QuickDecodeCases(const Bench& bench) {
  const AttentionShape shape;
  if (bench.rehearse()) {
    const AttentionShape small = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 64};
    AttentionShape e4m3 = small;
    e4m3.cache_dtype = DType::kF8E4M3;
    return {Uniform(small, 2, 300), Uniform(e4m3, 1, 40), WithQueries(small, 2, 70, 3)};
  }
  return {Uniform(shape, 1, 2048),
          Uniform(shape, 32, 8192),
          Uniform(shape, 128, 512),
          WithQueries(shape, 64, 4096, 4)};
}

// Adds steps of several queries per sequence, as in speculative decoding and at the ends of chunks.
void AddQueryCases(std::vector<DecodeCase>& cases) {
  AttentionShape e4m3;
  e4m3.cache_dtype = DType::kF8E4M3;
  for (const AttentionShape& shape : {AttentionShape{}, AttentionShape{28, 4}, e4m3}) {
    for (const int32_t query_len : {2, 4, 8, 16}) {
      cases.push_back(WithQueries(shape, 64, 4096, query_len));  // NOLINT(*-magic-numbers)
      cases.push_back(WithQueries(shape, 1, 32768, query_len));  // NOLINT(*-magic-numbers)
    }
  }
}

// Returns the default shape at all sizes, then other tuning parameters at one size, then other
// shapes.
std::vector<DecodeCase> AllDecodeCases() {
  const AttentionShape shape;
  std::vector<DecodeCase> cases;
  for (const int32_t seq_len : {8192, 2048, 512, 32768}) {
    for (const int32_t batch : {32, 128, 8, 1}) {
      cases.push_back(Uniform(shape, batch, seq_len));
    }
  }
  const DecodeCase middle = Uniform(shape, 32, 8192);
  for (const double ctas : {1.0 / 3.0, 0.5, 2.0 / 3.0, 2.0, 4.0}) {
    cases.push_back(middle);
    cases.back().ctas_over_grid = ctas;
  }
  for (const int32_t split_tokens : {128, 256, 512, 1024, 2048}) {
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
  AddQueryCases(cases);
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
// each layer reads a 32nd. This shows whether translating so many addresses costs bandwidth. For
// comparison there are blocks of few layers, and a pool in which each layer's blocks lie together.
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

// Measures the planning of a step's splits, which serves all layers.
void MeasurePlan(Bench& bench) {
  const int32_t batch = bench.Small(128, 8);
  const int32_t seq_len = 4096;
  const AttentionShape shape;
  Buffer seq_lens = Buffer::Of(std::vector<int32_t>(static_cast<size_t>(batch), seq_len));
  std::vector<int32_t> starts;
  for (int32_t i = 0; i <= batch; ++i) {
    starts.push_back(i);
  }
  Buffer query_start = Buffer::Of(starts);
  Buffer split_start((batch + 1) * int64_t{sizeof(int32_t)});
  PagedAttentionParams params = {.num_seqs = batch, .num_heads = shape.num_heads};
  params.query_start = query_start.as<int32_t>();
  params.seq_lens = seq_lens.as<int32_t>();
  params.cache.layout.num_kv_heads = shape.num_kv_heads;
  params.cache.layout.head_dim = shape.head_dim;
  for (const DecodeChoice& choice : kDecodeChoices) {
    const std::string name =
        NameWith("plan of " + std::to_string(batch) + " sequences", kDecodeChoices, choice);
    if (!IsChosen(bench.options().decode_kernels, choice) || !bench.IsWantedCase(name)) {
      continue;
    }
    Figure figure("decode", name);
    figure.timing = bench.Measure(1, [&](int) {
      return PlanDecode(params,
                        {.num_decodes = batch, .kernel = choice.kernel},
                        split_start.as<int32_t>(),
                        bench.stream());
    });
    bench.Add(figure);
  }
}

}  // namespace

void MeasureDecode(Bench& bench) {
  MeasurePlan(bench);
  if (bench.options().only_case.empty()) {
    MeasureReach(bench);
  }
  KvPool pool(bench);
  for (const DecodeCase& decode : bench.quick() ? QuickDecodeCases(bench) : AllDecodeCases()) {
    if (bench.IsOutOfTime()) {
      return;
    }
    Measure(bench, pool, decode);
  }
}

}  // namespace quire::gpu
