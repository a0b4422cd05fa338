// The operations that move memory and compute little. Their time is compared with that of a copy
// that moves as many bytes. Sizes are those of a Llama of 8 billion parameters. At 64 tokens (a
// decode step) the launch decides the time, at 8192 tokens (a prefill step) the memory does.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cuda/quantize_rows.h"
#include "tests/gpu/bench.h"

namespace quire::gpu {
namespace {

constexpr DType kType = DType::kBF16;

std::vector<int32_t> TokenCounts(const Bench& bench) {
  return bench.rehearse() ? std::vector<int32_t>{16} : std::vector<int32_t>{64, 8192};
}

std::string Named(const std::string& operation, int32_t num_tokens) {
  return operation + ", " + std::to_string(num_tokens) + " tokens";
}

// Returns num_sets buffers of `count` random numbers each.
std::vector<Buffer> RandomSets(
    Bench& bench, int num_sets, DType dtype, int64_t count, float scale = 1.0F) {
  std::vector<Buffer> buffers;
  for (int set = 0; set < num_sets; ++set) {
    buffers.push_back(bench.RandomBuffer(dtype, count, scale));
  }
  return buffers;
}

std::vector<Buffer> PoisonedSets(int num_sets, int64_t bytes) {
  std::vector<Buffer> buffers;
  for (int set = 0; set < num_sets; ++set) {
    buffers.emplace_back(bytes);
  }
  return buffers;
}

bool AreFinite(Bench& bench, const std::vector<Buffer>& buffers, DType dtype) {
  return std::all_of(buffers.begin(), buffers.end(), [&](const Buffer& buffer) {
    return bench.IsFinite(buffer.at(0), dtype, buffer.bytes() / SizeOf(dtype));
  });
}

const Buffer& Set(const std::vector<Buffer>& buffers, int set) {
  return buffers[static_cast<size_t>(set)];
}

void MeasureNorm(Bench& bench, int32_t num_tokens, NormKind kind) {
  const int32_t width = bench.Small(4096, 256);
  const int64_t count = int64_t{num_tokens} * width;
  // The residual is read and written, delta is read, and the output is written.
  const double bytes = static_cast<double>(count) * (4 + 4 + 2 + 2);
  const int num_sets = bench.NumSets(bytes);
  const auto residuals = RandomSets(bench, num_sets, DType::kF32, count);
  // Deltas are small, because each call adds one to the residual.
  const auto deltas = RandomSets(bench, num_sets, kType, count, 1e-3F);
  const auto outs = PoisonedSets(num_sets, count * SizeOf(kType));
  Buffer weight = bench.RandomBuffer(DType::kF32, width);
  Buffer bias = bench.RandomBuffer(DType::kF32, width);
  const bool is_rms = kind == NormKind::kRmsNorm;

  Figure figure("memory", Named(is_rms ? "rms_norm + add" : "layer_norm + add", num_tokens));
  figure.Param("num_tokens", num_tokens).Param("width", width);
  figure.timing = bench.Measure(num_sets, [&](int set) {
    return Norm({.kind = kind,
                 .num_tokens = num_tokens,
                 .width = width,
                 .residual = Set(residuals, set).as<float>(),
                 .delta = Set(deltas, set).at(0),
                 .weight = weight.as<float>(),
                 .bias = is_rms ? nullptr : bias.as<float>(),
                 .out = Set(outs, set).at(0)},
                kType,
                bench.stream());
  });
  figure.work.bytes = bytes;
  figure.ok = AreFinite(bench, outs, kType);
  bench.Add(figure);
}

void MeasureActivation(Bench& bench, int32_t num_tokens) {
  const int32_t width = bench.Small(14336, 256);
  const int64_t count = int64_t{num_tokens} * width;
  const double bytes = static_cast<double>(count) * 3 * 2;
  const int num_sets = bench.NumSets(bytes);
  const auto ins = RandomSets(bench, num_sets, kType, 2 * count);
  const auto outs = PoisonedSets(num_sets, count * SizeOf(kType));

  Figure figure("memory", Named("silu * up", num_tokens));
  figure.Param("num_tokens", num_tokens).Param("width", width);
  figure.timing = bench.Measure(num_sets, [&](int set) {
    return Activate({.num_tokens = num_tokens,
                     .width = width,
                     .in = Set(ins, set).at(0),
                     .out = Set(outs, set).at(0)},
                    kType,
                    bench.stream());
  });
  figure.work.bytes = bytes;
  figure.ok = AreFinite(bench, outs, kType);
  bench.Add(figure);
}

void MeasureQuantizeRows(Bench& bench, int32_t num_tokens) {
  const int32_t width = bench.Small(14336, 256);
  const int64_t count = int64_t{num_tokens} * width;
  const double bytes = static_cast<double>(count) * (2 + 1);
  const int num_sets = bench.NumSets(bytes);
  const auto ins = RandomSets(bench, num_sets, kType, count);
  const auto outs = PoisonedSets(num_sets, count * SizeOf(DType::kF8E4M3));
  Buffer scales(num_tokens * int64_t{sizeof(float)});

  Figure figure("memory", Named("quantize_rows", num_tokens));
  figure.Param("num_tokens", num_tokens).Param("width", width);
  figure.timing = bench.Measure(num_sets, [&](int set) {
    return QuantizeRows({.num_rows = num_tokens,
                         .width = width,
                         .in = Set(ins, set).at(0),
                         .dtype = kType,
                         .out = Set(outs, set).at(0),
                         .scales = scales.as<float>()},
                        bench.stream());
  });
  figure.work.bytes = bytes;
  figure.ok = AreFinite(bench, outs, DType::kF8E4M3);
  bench.Add(figure);
}

void MeasureEmbed(Bench& bench, int32_t num_tokens) {
  const int32_t width = bench.Small(4096, 256);
  const int32_t vocab_size = bench.Small(128256, 512);
  const int64_t count = int64_t{num_tokens} * width;
  const double bytes = static_cast<double>(count) * (2 + 4);
  const int num_sets = bench.NumSets(bytes);
  Buffer table = bench.RandomBuffer(kType, int64_t{vocab_size} * width);
  const auto outs = PoisonedSets(num_sets, count * SizeOf(DType::kF32));
  std::vector<TokenId> ids(static_cast<size_t>(num_sets) * static_cast<size_t>(num_tokens));
  constexpr size_t kStep = 7919;  // a prime, so that tokens are far apart
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<TokenId>(i * kStep % static_cast<size_t>(vocab_size));
  }
  Buffer token_ids = Buffer::Of(ids);

  Figure figure("memory", Named("embed", num_tokens));
  figure.Param("num_tokens", num_tokens).Param("width", width);
  figure.timing = bench.Measure(num_sets, [&](int set) {
    return Embed({.num_tokens = num_tokens,
                  .token_ids = token_ids.as<TokenId>() + int64_t{set} * num_tokens,
                  .table = {table.at(0), FormatOf(kType), vocab_size, width},
                  .out = Set(outs, set).at(0)},
                 bench.stream());
  });
  figure.work.bytes = bytes;
  figure.ok = AreFinite(bench, outs, DType::kF32);
  bench.Add(figure);
}

// Returns a table [num_positions, head_dim / 2] of a true rotation. Each call rotates q again, and
// q must neither grow nor vanish.
template <typename Function>
Buffer RotationTable(int32_t num_positions, int32_t head_dim, Function function) {
  constexpr double kTheta = 10000.0;
  std::vector<float> table;
  for (int32_t position = 0; position < num_positions; ++position) {
    for (int32_t d = 0; d < head_dim / 2; ++d) {
      const double frequency = std::pow(kTheta, -2.0 * d / head_dim);
      table.push_back(static_cast<float>(function(position * frequency)));
    }
  }
  return Buffer::Of(table);
}

// Writes whole blocks of one layer, so that nothing in the pool is NaN afterwards.
void MeasurePrepareAttention(Bench& bench, int32_t num_tokens, DType cache_dtype) {
  constexpr int32_t kBlockSize = 16;
  const int32_t num_heads = bench.Small(32, 4);
  const int32_t num_kv_heads = bench.Small(8, 2);
  const int32_t head_dim = 128;
  const int64_t row = int64_t{num_heads + 2 * num_kv_heads} * head_dim;
  const int64_t kv_row = int64_t{2} * num_kv_heads * head_dim;
  const double bytes = static_cast<double>(num_tokens) *
                       static_cast<double>(row * 2 + int64_t{num_heads} * head_dim * 2 +
                                           kv_row * SizeOf(cache_dtype) + head_dim * 4);
  const int num_sets = bench.NumSets(bytes);
  const int64_t num_blocks = int64_t{num_sets} * num_tokens / kBlockSize;
  const KvCacheLayout layout = SwizzledRows({.num_layers = 1,
                                             .num_kv_heads = num_kv_heads,
                                             .head_dim = head_dim,
                                             .block_size_tokens = kBlockSize,
                                             .dtype = cache_dtype});
  const auto qkvs = RandomSets(bench, num_sets, kType, num_tokens * row);
  Buffer pool(num_blocks * layout.block_bytes());
  Buffer cos = RotationTable(num_tokens, head_dim, [](double angle) { return std::cos(angle); });
  Buffer sin = RotationTable(num_tokens, head_dim, [](double angle) { return std::sin(angle); });
  std::vector<int32_t> tokens(static_cast<size_t>(num_tokens));
  std::iota(tokens.begin(), tokens.end(), 0);
  Buffer positions = Buffer::Of(tokens);
  std::vector<int64_t> all_slots(static_cast<size_t>(num_sets) * tokens.size());
  std::iota(all_slots.begin(), all_slots.end(), 0);
  Buffer slots = Buffer::Of(all_slots);

  Figure figure(
      "memory",
      Named(cache_dtype == kType ? "rope + KV write" : "rope + KV write e4m3", num_tokens));
  figure.Param("num_tokens", num_tokens).Param("num_heads", num_heads);
  figure.timing = bench.Measure(num_sets, [&](int set) {
    return PrepareAttention({.num_tokens = num_tokens,
                             .num_heads = num_heads,
                             .qkv = Set(qkvs, set).at(0),
                             .rope_cos = cos.as<float>(),
                             .rope_sin = sin.as<float>(),
                             .positions = positions.as<int32_t>(),
                             .slot_mapping = slots.as<int64_t>() + int64_t{set} * num_tokens,
                             .cache = {pool.at(0), num_blocks, layout}},
                            kType,
                            bench.stream());
  });
  figure.work.bytes = bytes;
  figure.ok = AreFinite(bench, qkvs, kType) &&
              bench.IsFinite(pool.at(0), cache_dtype, num_blocks * layout.block_stride);
  bench.Add(figure);
}

// Copies blocks of 2 MiB (16 tokens, 32 layers) from the first half of the pool to the second.
void MeasureCopyBlocks(Bench& bench, int32_t num_pairs) {
  const int64_t block_bytes = bench.rehearse() ? 4096 : int64_t{2} << 20;
  const int64_t half = int64_t{num_pairs} * block_bytes;
  Buffer pool(2 * half);
  bench.Randomize(pool.at(0), kType, half / SizeOf(kType));
  std::vector<BlockId> ids(2 * static_cast<size_t>(num_pairs));
  std::iota(ids.begin(), ids.end(), 0);
  Buffer device_ids = Buffer::Of(ids);
  const auto count = static_cast<size_t>(num_pairs);
  const KvCacheLayout layout = {.dtype = DType::kInt8, .block_stride = block_bytes};

  Figure figure("memory", "copy_blocks, " + std::to_string(num_pairs) + " of 2 MiB");
  figure.Param("num_pairs", num_pairs).Param("block_bytes", block_bytes);
  figure.timing = bench.Measure(1, [&](int) {
    return CopyBlocks({.cache = {pool.at(0), 2 * num_pairs, layout},
                       .src = {device_ids.as<BlockId>(), count},
                       .dst = {device_ids.as<BlockId>() + num_pairs, count}},
                      bench.stream());
  });
  figure.work.bytes = 2.0 * static_cast<double>(half);
  figure.ok = bench.IsEqual(pool.at(0), pool.at(half), half);
  bench.Add(figure);
}

}  // namespace

void MeasureMemoryKernels(Bench& bench) {
  for (const int32_t num_tokens : TokenCounts(bench)) {
    if (bench.IsOutOfTime()) {
      return;
    }
    MeasureNorm(bench, num_tokens, NormKind::kRmsNorm);
    MeasureNorm(bench, num_tokens, NormKind::kLayerNorm);
    MeasurePrepareAttention(bench, num_tokens, kType);
    MeasurePrepareAttention(bench, num_tokens, DType::kF8E4M3);
    MeasureActivation(bench, num_tokens);
    MeasureQuantizeRows(bench, num_tokens);
    MeasureEmbed(bench, num_tokens);
  }
  MeasureCopyBlocks(bench, bench.Small(256, 2));
}

}  // namespace quire::gpu
