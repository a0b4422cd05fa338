#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "tests/gpu/bench_attention.h"
#include "tests/gpu/bench_gemm.h"

namespace quire::gpu {
namespace {

constexpr int32_t kLayersWherePossible = 4;

int64_t RoundUp(int64_t count, int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

}  // namespace

std::string AttentionShape::Name() const {
  return std::to_string(num_heads) + "/" + std::to_string(num_kv_heads) + " heads of " +
         std::to_string(head_dim) + ", block " + std::to_string(block_size_tokens) +
         (cache_dtype == dtype ? "" : ", e4m3");
}

void AttentionShape::AddParams(Figure& figure) const {
  figure.Param("num_heads", num_heads).Param("num_kv_heads", num_kv_heads);
  figure.Param("head_dim", head_dim).Param("block_size", block_size_tokens);
  figure.Param("cache_dtype", std::string(NameOf(cache_dtype)));
}

// ---- KvPool -------------------------------------------------------------------------------------

int64_t KvPool::SizeFor(const Bench& bench, const PoolSize& size) {
  constexpr int64_t kTiny = int64_t{4} << 20;
  constexpr int64_t kMultiple = int64_t{1} << 20;
  if (bench.rehearse()) {
    return kTiny;
  }
  DeviceInfo now;
  Require(QueryDevice(bench.device().index, &now), "query device");
  const double bytes =
      std::min(size.share_of_free * static_cast<double>(now.free_bytes), size.max_bytes);
  return static_cast<int64_t>(bytes) / kMultiple * kMultiple;
}

KvPool::KvPool(Bench& bench, const PoolSize& size)
    : bench_(bench), memory_(SizeFor(bench, size)), data_(memory_.at(0)), bytes_(memory_.bytes()) {}

KvPool::KvPool(Bench& bench, void* data, int64_t bytes)
    : bench_(bench), memory_(0), data_(data), bytes_(bytes) {}

void KvPool::FillFor(DType dtype) {
  if (filled_with_ != dtype) {
    bench_.Randomize(data_, dtype, bytes_ / SizeOf(dtype));
    filled_with_ = dtype;
  }
}

// ---- AttentionBatch -----------------------------------------------------------------------------

std::optional<AttentionBatch> AttentionBatch::Make(Bench& bench,
                                                   KvPool& pool,
                                                   const AttentionShape& shape,
                                                   const std::vector<SequenceLengths>& sequences,
                                                   const PoolLayers& layers) {
  // Uses several layers, so that blocks lie as far apart as in a model, but one layer if memory is
  // short.
  std::vector<int32_t> choices = {kLayersWherePossible, 1};
  if (layers.num_layers > 0) {
    choices = {layers.num_layers};
  }
  for (const int32_t num_layers : choices) {
    AttentionBatch batch(bench, pool, shape, sequences, {num_layers, layers.layer_major});
    if (batch.blocks_a_table_ >= batch.cache_.num_blocks) {
      continue;
    }
    pool.FillFor(shape.cache_dtype);
    const int wanted = std::max(bench.NumSets(batch.LeastWork().bytes), layers.num_layers);
    const int64_t most = (batch.cache_.num_blocks - 1) / batch.blocks_a_table_;
    const int num_tables =
        static_cast<int>(std::min<int64_t>((wanted + num_layers - 1) / num_layers, most));
    batch.num_sets_ = std::min(wanted, num_tables * num_layers);
    batch.MakeTables(num_tables);
    batch.out_ = Buffer(batch.num_sets_ * batch.out_bytes_a_set());
    return batch;
  }
  return std::nullopt;
}

AttentionBatch::AttentionBatch(Bench& bench,
                               KvPool& pool,
                               const AttentionShape& shape,
                               const std::vector<SequenceLengths>& sequences,
                               const PoolLayers& layers)
    : shape_(shape),
      sequences_(sequences),
      layers_(layers),
      q_(0),
      out_(0),
      query_start_(0),
      seq_lens_(0),
      block_tables_(0) {
  cache_.base = pool.data();
  const int32_t regions = layers.layer_major ? layers.num_layers : 1;
  cache_.layout = SwizzledRows({.num_layers = layers.num_layers / regions,
                                .num_kv_heads = shape.num_kv_heads,
                                .head_dim = shape.head_dim,
                                .block_size_tokens = shape.block_size_tokens,
                                .dtype = shape.cache_dtype});
  cache_.num_blocks = pool.bytes() / regions / cache_.layout.block_bytes();
  std::vector<int32_t> starts = {0};
  std::vector<int32_t> lens;
  for (const SequenceLengths& sequence : sequences) {
    starts.push_back(starts.back() + sequence.query_len);
    lens.push_back(sequence.seq_len);
    blocks_a_table_ += BlocksOf(sequence);
    max_blocks_per_seq_ = std::max(max_blocks_per_seq_, static_cast<int32_t>(BlocksOf(sequence)));
  }
  num_tokens_ = starts.back();
  query_start_ = Buffer::Of(starts);
  seq_lens_ = Buffer::Of(lens);
  q_ = bench.RandomBuffer(
      shape.dtype,
      int64_t{num_tokens_} * (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim);
}

int64_t AttentionBatch::BlocksOf(const SequenceLengths& sequence) const {
  return (sequence.seq_len + shape_.block_size_tokens - 1) / shape_.block_size_tokens;
}

// Gives the tables blocks from all over the pool, in random order. Leaves out block 0, the null
// block.
void AttentionBatch::MakeTables(int num_tables) {
  constexpr uint32_t kSeed = 20260101;
  std::vector<BlockId> ids(static_cast<size_t>(cache_.num_blocks - 1));
  std::iota(ids.begin(), ids.end(), 1);
  std::mt19937 random(kSeed);
  const size_t num_used = static_cast<size_t>(blocks_a_table_ * num_tables);
  for (size_t i = 0; i < num_used; ++i) {
    std::swap(ids[i], ids[std::uniform_int_distribution<size_t>(i, ids.size() - 1)(random)]);
  }
  const auto width = static_cast<size_t>(max_blocks_per_seq_);
  std::vector<BlockId> tables(static_cast<size_t>(num_tables) * sequences_.size() * width,
                              kNullBlockId);
  size_t next = 0;
  for (size_t row = 0; row < static_cast<size_t>(num_tables) * sequences_.size(); ++row) {
    const auto blocks = static_cast<size_t>(BlocksOf(sequences_[row % sequences_.size()]));
    std::copy_n(ids.begin() + static_cast<int64_t>(next),
                blocks,
                tables.begin() + static_cast<int64_t>(row * width));
    next += blocks;
  }
  block_tables_ = Buffer::Of(tables);
}

int64_t AttentionBatch::out_bytes_a_set() const {
  constexpr int64_t kAlignment = 256;
  return RoundUp(int64_t{num_tokens_} * shape_.num_heads * shape_.head_dim * SizeOf(shape_.dtype),
                 kAlignment);
}

PagedAttentionParams AttentionBatch::Args(int set) const {
  const int32_t layer = set % layers_.num_layers;
  const auto num_seqs = static_cast<int32_t>(sequences_.size());
  const int64_t table = set / layers_.num_layers;
  KvCacheView cache = cache_;
  if (layers_.layer_major) {
    cache.base =
        static_cast<char*>(cache_.base) + layer * cache_.num_blocks * cache_.layout.block_bytes();
  }
  return {.num_seqs = num_seqs,
          .num_heads = shape_.num_heads,
          .layer = layers_.layer_major ? 0 : layer,
          .q = q_.at(0),
          .q_row_stride = int64_t{shape_.num_heads + 2 * shape_.num_kv_heads} * shape_.head_dim,
          .out = out_.at(set * out_bytes_a_set()),
          .scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim)),
          .query_start = query_start_.as<int32_t>(),
          .seq_lens = seq_lens_.as<int32_t>(),
          .block_tables = block_tables_.as<BlockId>() + table * num_seqs * max_blocks_per_seq_,
          .max_blocks_per_seq = max_blocks_per_seq_,
          .cache = cache};
}

Work AttentionBatch::LeastWork() const {
  Work work;
  const double kv_bytes_a_token =
      2.0 * shape_.num_kv_heads * shape_.head_dim * static_cast<double>(SizeOf(shape_.cache_dtype));
  for (const SequenceLengths& sequence : sequences_) {
    work.bytes += kv_bytes_a_token * sequence.seq_len;
    // Query i attends to the context and to i + 1 new tokens.
    const double context = sequence.seq_len - sequence.query_len;
    const double queries = sequence.query_len;
    const double pairs = queries * context + queries * (queries + 1.0) / 2.0;
    work.flops += 4.0 * shape_.head_dim * shape_.num_heads * pairs;
  }
  work.bytes += 2.0 * num_tokens_ * shape_.num_heads * shape_.head_dim *
                static_cast<double>(SizeOf(shape_.dtype));
  return work;
}

// Returns the first and the last query of some sequences, in some heads.
std::vector<AttentionProbe> AttentionBatch::Probes() const {
  constexpr size_t kMostSequences = 4;
  std::vector<AttentionProbe> probes;
  const std::vector<int32_t> starts = query_start_.ToHost<int32_t>();
  const size_t step = std::max<size_t>(1, sequences_.size() / kMostSequences);
  for (size_t s = sequences_.size(); s > 0; s -= std::min(s, step)) {
    const SequenceLengths& sequence = sequences_[s - 1];
    const auto index = static_cast<int32_t>(s - 1);
    for (const int32_t query : {0, sequence.query_len - 1}) {
      probes.push_back(
          {.sequence = index,
           .token = starts[s - 1] + query,
           .head = (7 * index + (query > 0 ? shape_.num_heads - 1 : 0)) % shape_.num_heads,
           .num_keys = sequence.seq_len - sequence.query_len + query + 1});
    }
  }
  return probes;
}

double AttentionBatch::ProbedError(Bench& bench, bool has_plain_rows) const {
  const std::vector<AttentionProbe> probes = Probes();
  Buffer device_probes = Buffer::Of(probes);
  int32_t max_keys = 0;
  for (const AttentionProbe& probe : probes) {
    max_keys = std::max(max_keys, probe.num_keys);
  }
  const auto num_probes = static_cast<int64_t>(probes.size());
  Buffer scores(num_probes * max_keys * int64_t{sizeof(float)});
  Buffer squares(num_probes * 2 * int64_t{sizeof(float)});
  std::vector<float> all;
  for (const int set : {0, num_sets_ - 1}) {
    Require(ProbeAttention({.attention = Args(set),
                            .activations = shape_.dtype,
                            .has_plain_rows = has_plain_rows,
                            .probes = device_probes.as<AttentionProbe>(),
                            .num_probes = static_cast<int32_t>(num_probes),
                            .scores = scores.as<float>(),
                            .max_keys = max_keys,
                            .squares = squares.as<float>()},
                           bench.stream()),
            "probe attention");
    bench.Wait();
    const std::vector<float> of_set = squares.ToHost<float>();
    all.insert(all.end(), of_set.begin(), of_set.end());
  }
  return RelativeError(all);
}

bool AttentionBatch::IsFinite(Bench& bench) const {
  const int64_t count = int64_t{num_tokens_} * shape_.num_heads * shape_.head_dim;
  for (int set = 0; set < num_sets_; ++set) {
    if (!bench.IsFinite(Args(set).out, shape_.dtype, count)) {
      return false;
    }
  }
  return true;
}

}  // namespace quire::gpu
