#include "tests/kernels/attention_case.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <numeric>

#include "gtest/gtest.h"

#include "common/base/check.h"
#include "common/base/math.h"
#include "common/model/sliding_window.h"
#include "kernels/reference/element.h"
#include "kernels/reference/reference_backend.h"

namespace quire {
namespace {

constexpr int32_t kNumLayers = 2;
constexpr int32_t kLayer = 1;
constexpr uint32_t kGuard = 0x7FC0BEEF;  // a NaN, so that using one is seen as well
constexpr size_t kNumGuards = 64;

uint64_t Mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9;
  x ^= x >> 27;
  x *= 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// Block-major pool memory full of NaN (all bits set, in every dtype).
class PoisonedPool {
 public:
  PoisonedPool(const KvCacheLayout& layout, int64_t num_blocks)
      : bytes_(static_cast<size_t>(layout.block_bytes() * num_blocks)),
        memory_(new (std::align_val_t{64}) std::byte[bytes_]) {
    std::memset(memory_.get(), 0xFF, bytes_);
    view_ = {memory_.get(), num_blocks, layout};
  }

  const KvCacheView& view() const { return view_; }
  std::vector<std::byte> Bytes() const { return {memory_.get(), memory_.get() + bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  size_t bytes_;
  std::unique_ptr<std::byte[], Free> memory_;
  KvCacheView view_;
};

// The first block that any query of the sequence reads. The core frees earlier blocks while the
// sequence runs, so no test writes them. For those the table names the null block or, as a worker's
// table does, the freed block.
int32_t FirstBlockRead(const AttentionCase& c, const CaseSequence& sequence) {
  return NumBlocksBeforeWindow(
      sequence.seq_len - sequence.query_len, c.sliding_window, c.block_size_tokens);
}

// Distinct blocks for all sequences, in an order that depends on the case's seed; padding is null.
struct BlockTables {
  std::vector<BlockId> ids;
  int32_t max_blocks_per_seq = 0;
  int32_t num_blocks = 1;  // with the null block
};

BlockTables MakeBlockTables(const AttentionCase& c) {
  BlockTables tables;
  for (const CaseSequence& sequence : c.sequences) {
    int32_t blocks = DivCeil(sequence.seq_len, c.block_size_tokens);
    tables.max_blocks_per_seq = std::max(tables.max_blocks_per_seq, blocks + 1);
    tables.num_blocks += blocks;
  }
  std::vector<BlockId> free(static_cast<size_t>(tables.num_blocks - 1));
  std::iota(free.begin(), free.end(), BlockId{1});
  std::sort(free.begin(), free.end(), [&c](BlockId a, BlockId b) {
    return Mix(c.block_seed * 1000003 + static_cast<uint64_t>(a)) <
           Mix(c.block_seed * 1000003 + static_cast<uint64_t>(b));
  });
  size_t next = 0;
  for (const CaseSequence& sequence : c.sequences) {
    for (int32_t i = 0; i < tables.max_blocks_per_seq; ++i) {
      const bool used = i < DivCeil(sequence.seq_len, c.block_size_tokens);
      const BlockId block = used ? free[next++] : kNullBlockId;
      const bool is_null = i < FirstBlockRead(c, sequence) && i % 2 == 0;
      tables.ids.push_back(is_null ? kNullBlockId : block);
    }
  }
  return tables;
}

// A copy of the pool in windows: each sequence's blocks lie one behind the other. A place whose
// table entry is the null block is not mapped, so a kernel that reads it crashes the test.
class WindowedPool {
 public:
  WindowedPool(KernelBackend& backend, const KvCacheView& pool, const BlockTables& tables)
      : view_(pool) {
    const int64_t page_bytes = backend.window_page_bytes();
    QUIRE_CHECK(page_bytes >= SizeOf(pool.layout.dtype));
    view_.layout = PadBlocks(pool.layout, page_bytes);
    const int64_t block_bytes = view_.layout.block_bytes();
    auto memory = backend.AllocateWindows({.block_bytes = block_bytes,
                                           .num_blocks = pool.num_blocks,
                                           .num_places = static_cast<int64_t>(tables.ids.size())});
    EXPECT_TRUE(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
    view_.base = memory_->pool();
    view_.windows = memory_->windows();
    std::memset(view_.base, 0xFF, static_cast<size_t>(block_bytes * pool.num_blocks));
    for (int64_t block = 0; block < pool.num_blocks; ++block) {
      const int64_t bytes = pool.layout.block_bytes();
      std::memcpy(static_cast<std::byte*>(view_.base) + block * block_bytes,
                  static_cast<const std::byte*>(pool.base) + block * bytes,
                  static_cast<size_t>(bytes));
    }
    for (size_t place = 0; place < tables.ids.size(); ++place) {
      if (tables.ids[place] != kNullBlockId) {
        EXPECT_TRUE(memory_->Map(static_cast<int64_t>(place), tables.ids[place], 1).ok());
      }
    }
  }

  const KvCacheView& view() const { return view_; }

 private:
  std::unique_ptr<WindowMemory> memory_;
  KvCacheView view_;
};

// The vector as it reads after it was stored with a scale.
std::vector<float> RoundedAs(DType dtype, const std::vector<float>& vector) {
  std::vector<unsigned char> stored(vector.size());
  float scale = reference::StoreScaledVector(
      stored.data(), dtype, 0, 1, vector.data(), static_cast<int32_t>(vector.size()));
  std::vector<float> read;
  for (size_t d = 0; d < vector.size(); ++d) {
    read.push_back(scale * reference::LoadElement(stored.data(), dtype, static_cast<int64_t>(d)));
  }
  return read;
}

// Elements at, at + stride, ... of the pool; `scale_at` is the byte of the vector's scale.
void WriteVector(const KvCacheView& cache,
                 int64_t at,
                 int64_t stride,
                 int64_t scale_at,
                 const std::vector<float>& vector) {
  const KvCacheLayout& layout = cache.layout;
  if (layout.has_scales()) {
    float scale = reference::StoreScaledVector(
        cache.base, layout.dtype, at, stride, vector.data(), layout.head_dim);
    std::memcpy(static_cast<std::byte*>(cache.base) + scale_at, &scale, sizeof(scale));
    return;
  }
  for (int32_t d = 0; d < layout.head_dim; ++d) {
    reference::StoreElement(
        cache.base, layout.dtype, at + d * stride, vector[static_cast<size_t>(d)]);
  }
}

void WriteSequence(const AttentionCase& c,
                   const CaseSequence& sequence,
                   const BlockId* table,
                   const KvCacheView& cache) {
  const KvCacheLayout& layout = cache.layout;
  const int32_t first = FirstBlockRead(c, sequence) * layout.block_size_tokens;
  for (int32_t position = first; position < sequence.seq_len; ++position) {
    BlockId block = table[position / layout.block_size_tokens];
    int64_t slot = position % layout.block_size_tokens;
    for (int32_t head = 0; head < c.num_kv_heads; ++head) {
      std::vector<float> key;
      std::vector<float> value;
      for (int32_t d = 0; d < c.head_dim; ++d) {
        auto p = static_cast<uint64_t>(position);
        auto h = static_cast<uint64_t>(head);
        auto dim = static_cast<uint64_t>(d);
        float k = 3.0F * NumberFor(sequence.key, p, 1000 + h, dim);
        float v = NumberFor(sequence.key, p, 2000 + h, dim);
        key.push_back(k);
        value.push_back(c.change_value ? c.change_value(position, v) : v);
      }
      if (c.rounded_as.has_value()) {
        key = RoundedAs(*c.rounded_as, key);
        value = RoundedAs(*c.rounded_as, value);
      }
      int64_t at = layout.KeyOffset(block, kLayer, head);
      int64_t scale_at = at + slot * int64_t{sizeof(float)};
      WriteVector(cache,
                  at + slot * layout.key_slot_stride,
                  layout.key_dim_stride,
                  scale_at + layout.key_scale_offset,
                  key);
      WriteVector(cache,
                  at + layout.value_offset + slot * layout.value_slot_stride,
                  1,
                  scale_at + layout.value_scale_offset,
                  value);
    }
  }
}

// Rows as the qkv product leaves them: queries first, then numbers that attention must not read.
std::vector<float> MakeQueries(const AttentionCase& c, int64_t row_stride) {
  std::vector<float> q;
  for (const CaseSequence& sequence : c.sequences) {
    for (int32_t i = 0; i < sequence.query_len; ++i) {
      int32_t position = sequence.seq_len - sequence.query_len + i;
      size_t row = q.size();
      q.resize(row + static_cast<size_t>(row_stride), std::bit_cast<float>(kGuard));
      for (int32_t at = 0; at < c.num_heads * c.head_dim; ++at) {
        float value = 2.0F * NumberFor(sequence.key,
                                       static_cast<uint64_t>(position),
                                       3000,
                                       static_cast<uint64_t>(at));
        q[row + static_cast<size_t>(at)] = c.change_query ? c.change_query(value) : value;
      }
    }
  }
  return q;
}

// Slopes large enough that a position off by one shows, and small enough that far keys still count.
std::vector<float> MakeSlopes(const AttentionCase& c) {
  std::vector<float> slopes;
  for (int32_t head = 0; c.alibi && head < c.num_heads; ++head) {
    const float share = static_cast<float>(head) / static_cast<float>(c.num_heads);
    slopes.push_back(std::exp2(-4.0F * share) / (head % 2 == 0 ? 1.0F : 64.0F));
  }
  return slopes;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The same operation on windows in place of block tables.
std::vector<float> ThroughWindows(KernelBackend& backend,
                                  PagedAttentionParams params,
                                  const BlockTables& tables,
                                  size_t out_size) {
  const WindowedPool pool(backend, params.cache, tables);
  std::vector<int64_t> first_places;
  for (int64_t s = 0; s < params.num_seqs; ++s) {
    first_places.push_back(s * tables.max_blocks_per_seq);
  }
  std::vector<float> out(out_size, std::bit_cast<float>(kGuard));
  params.block_tables = nullptr;
  params.max_blocks_per_seq = 0;
  params.first_places = first_places.data();
  params.cache = pool.view();
  params.out = out.data();
  backend.PagedAttention(params);
  return out;
}

}  // namespace

float NumberFor(uint64_t key, uint64_t a, uint64_t b, uint64_t c) {
  uint64_t bits = Mix(Mix(Mix(Mix(key + 0x9E3779B97F4A7C15) + a) + b) + c);
  return static_cast<float>(static_cast<int64_t>(bits >> 40) - (int64_t{1} << 23)) * 0x1p-23F;
}

double NormalisedError(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0.0;
  double size = 1e-30;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) || std::isnan(b[i])) {
      return std::numeric_limits<double>::infinity();
    }
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{b[i]} * b[i];
  }
  return std::sqrt(difference / size);
}

std::vector<float> RunAttention(KernelBackend& backend, const AttentionCase& c) {
  KvCacheSpec spec;
  spec.num_layers = kNumLayers;
  spec.num_kv_heads = c.num_kv_heads;
  spec.head_dim = c.head_dim;
  spec.block_size_tokens = c.block_size_tokens;
  spec.dtype = c.dtype;
  BlockTables tables = MakeBlockTables(c);
  PoisonedPool pool(backend.LayoutFor(spec), tables.num_blocks);
  std::vector<int32_t> query_start = {0};
  std::vector<int32_t> seq_lens;
  for (size_t s = 0; s < c.sequences.size(); ++s) {
    WriteSequence(c,
                  c.sequences[s],
                  tables.ids.data() + s * static_cast<size_t>(tables.max_blocks_per_seq),
                  pool.view());
    query_start.push_back(query_start.back() + c.sequences[s].query_len);
    seq_lens.push_back(c.sequences[s].seq_len);
  }
  int64_t width = int64_t{c.num_heads} * c.head_dim;
  int64_t q_row_stride = width + int64_t{2} * c.num_kv_heads * c.head_dim;
  const std::vector<float> q_before = MakeQueries(c, q_row_stride);
  std::vector<float> q = q_before;
  auto out_size = static_cast<size_t>(query_start.back() * width);
  std::vector<float> out(out_size + kNumGuards, std::bit_cast<float>(kGuard));
  std::vector<std::byte> pool_before = pool.Bytes();

  const std::vector<float> slopes = MakeSlopes(c);
  PagedAttentionParams params;
  params.num_seqs = static_cast<int32_t>(c.sequences.size());
  params.num_heads = c.num_heads;
  params.layer = kLayer;
  params.q = q.data();
  params.q_row_stride = q_row_stride;
  params.out = out.data();
  params.scale = 1.0F / std::sqrt(static_cast<float>(c.head_dim));
  params.sliding_window = c.sliding_window;
  params.alibi_slopes = slopes.empty() ? nullptr : slopes.data();
  params.query_start = query_start.data();
  params.seq_lens = seq_lens.data();
  params.block_tables = tables.ids.data();
  params.max_blocks_per_seq = tables.max_blocks_per_seq;
  params.cache = pool.view();
  backend.PagedAttention(params);

  EXPECT_TRUE(SameBits(q, q_before)) << "queries were changed";
  EXPECT_EQ(pool.Bytes(), pool_before) << "the pool was changed";
  for (size_t i = out_size; i < out.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(out[i]), kGuard) << "written behind the output";
  }
  EXPECT_TRUE(SameBits(ThroughWindows(backend, params, tables, out.size()), out))
      << "windows give other bits than block tables";
  out.resize(out_size);
  return out;
}

std::vector<float> ReferenceAttention(const AttentionCase& c) {
  return RunAttention(*CreateReferenceBackend(), c);
}

}  // namespace quire
