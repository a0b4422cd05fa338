// The bench's peer is a peer only if it computes the same: its outputs have the bits of the paged
// kernel's for random shapes. Both caches hold the same numbers; NaN is wherever no token is.
#include "tests/bench/contiguous_attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

#include "common/base/math.h"
#include "kernels/cpu/kernel_table.h"
#include "tests/support/random.h"

namespace quire {
namespace {

constexpr int32_t kReadAhead = 16;  // tokens

struct Shape {
  int32_t num_kv_heads = 1;
  int32_t group = 1;
  int32_t head_dim = 64;
  int32_t block_size_tokens = 16;
  DType dtype = DType::kBF16;
  bool head_major = false;  // of the contiguous cache: [head][token], not [token][head]
  std::vector<int32_t> seq_lens;

  std::string ToString() const {
    std::string text = std::to_string(num_kv_heads) + " KV heads of " + std::to_string(group) +
                       " queries, dim " + std::to_string(head_dim) + ", block " +
                       std::to_string(block_size_tokens) + (head_major ? ", head-major" : "");
    for (const int32_t seq_len : seq_lens) {
      text += " " + std::to_string(seq_len);
    }
    return text;
  }
};

Shape RandomShape(DType dtype, Random& random) {
  constexpr int32_t kHeadDims[] = {8, 16, 24, 32, 48, 64, 80, 96, 128, 256};
  constexpr int32_t kGroups[] = {1, 2, 3, 4, 5, 6, 7, 8, 12};
  constexpr int32_t kBlockSizes[] = {5, 16, 64, 256};
  constexpr int32_t kLimits[] = {20, 300, 1000, 5000};
  Shape shape;
  shape.num_kv_heads = random.Between(1, 4);
  shape.group = kGroups[random.Below(std::size(kGroups))];
  shape.head_dim = kHeadDims[random.Below(std::size(kHeadDims))];
  shape.block_size_tokens = kBlockSizes[random.Below(std::size(kBlockSizes))];
  shape.dtype = dtype;
  shape.head_major = random.OneIn(2);
  for (int32_t seqs = random.Between(1, 3); seqs > 0; --seqs) {
    shape.seq_lens.push_back(random.Between(1, kLimits[random.Below(std::size(kLimits))]));
  }
  return shape;
}

// A number in [-2, 2) that bf16 holds; its bits as they are stored.
uint32_t StoredNumber(DType dtype, Random& random) {
  const float number = static_cast<float>(random.Below(512) - 256) / 128.0F;
  const auto bits = std::bit_cast<uint32_t>(number);
  return dtype == DType::kF32 ? bits : bits >> 16;
}

// Some paths take denormals for zero. One dim is denormal in all values, because beside larger
// numbers a denormal would not show.
constexpr int32_t kDenormalDim = 3;
uint32_t DenormalNumber(Random& random) { return static_cast<uint32_t>(random.Between(1, 127)); }

// Memory that reads as NaN in every type until it is written.
class Cache {
 public:
  Cache(DType dtype, int64_t elements)
      : element_bytes_(static_cast<size_t>(SizeOf(dtype))),
        bytes_(static_cast<size_t>(elements) * element_bytes_),
        memory_(new (std::align_val_t{64}) std::byte[bytes_]) {
    std::memset(memory_.get(), 0xFF, bytes_);
  }
  void Set(int64_t element, uint32_t stored) { std::memcpy(At(element), &stored, element_bytes_); }
  std::byte* At(int64_t element) const {
    return memory_.get() + static_cast<size_t>(element) * element_bytes_;
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  size_t element_bytes_;
  size_t bytes_;
  std::unique_ptr<std::byte[], Free> memory_;
};

// The same tokens in a pool of blocks and, contiguous, in arrays of a sequence each.
class BothCaches {
 public:
  BothCaches(const Shape& shape, Random& random) : shape_(shape) {
    layout_ = DimMajorKeys({.num_layers = 1,
                            .num_kv_heads = shape.num_kv_heads,
                            .head_dim = shape.head_dim,
                            .block_size_tokens = shape.block_size_tokens,
                            .dtype = shape.dtype});
    for (const int32_t seq_len : shape.seq_lens) {
      num_blocks_ += DivCeil(seq_len, shape.block_size_tokens);
      max_blocks_ = std::max(max_blocks_, DivCeil(seq_len, shape.block_size_tokens));
    }
    pool_ = std::make_unique<Cache>(shape.dtype, num_blocks_ * layout_.block_stride);
    tables_.assign(shape.seq_lens.size() * static_cast<size_t>(max_blocks_), kNullBlockId);
    BlockId next = num_blocks_;
    for (size_t seq = 0; seq < shape.seq_lens.size(); ++seq) {
      const int32_t seq_len = shape.seq_lens[seq];
      for (int32_t i = 0; i < DivCeil(seq_len, shape.block_size_tokens); ++i) {
        tables_[seq * static_cast<size_t>(max_blocks_) + static_cast<size_t>(i)] = --next;
      }
      keys_.push_back(MakeArray(seq_len));
      values_.push_back(MakeArray(seq_len));
      key_arrays_.push_back(keys_.back()->At(0));
      value_arrays_.push_back(values_.back()->At(0));
      for (int32_t token = 0; token < seq_len; ++token) {
        WriteToken(seq, token, random);
      }
    }
    const int32_t num_heads = shape.num_kv_heads * shape.group;
    for (int64_t i = 0; i < int64_t{num_heads} * shape.head_dim * num_seqs(); ++i) {
      q_.push_back(static_cast<float>(random.Below(2001) - 1000) / 1000.0F);
    }
    query_start_.resize(shape.seq_lens.size() + 1);
    std::iota(query_start_.begin(), query_start_.end(), 0);
  }

  std::vector<float> Paged(const KernelTable& table, ThreadTeam& team) const {
    std::vector<float> out(q_.size());
    table.paged_attention({.num_seqs = num_seqs(),
                           .num_heads = shape_.num_kv_heads * shape_.group,
                           .q = q_.data(),
                           .q_row_stride = row_width(),
                           .out = out.data(),
                           .scale = scale(),
                           .query_start = query_start_.data(),
                           .seq_lens = shape_.seq_lens.data(),
                           .block_tables = tables_.data(),
                           .max_blocks_per_seq = max_blocks_,
                           .cache = {pool_->At(0), num_blocks_, layout_}},
                          team);
    return out;
  }

  std::vector<float> Contiguous(ContiguousAttention kernel, ThreadTeam& team) const {
    std::vector<float> out(q_.size());
    kernel({.num_seqs = num_seqs(),
            .num_heads = shape_.num_kv_heads * shape_.group,
            .num_kv_heads = shape_.num_kv_heads,
            .head_dim = shape_.head_dim,
            .q = q_.data(),
            .q_row_stride = row_width(),
            .out = out.data(),
            .scale = scale(),
            .seq_lens = shape_.seq_lens.data(),
            .keys = key_arrays_.data(),
            .values = value_arrays_.data(),
            .token_stride = token_stride(),
            .head_stride = head_stride()},
           team);
    return out;
  }

 private:
  int32_t num_seqs() const { return static_cast<int32_t>(shape_.seq_lens.size()); }
  int64_t row_width() const {
    return int64_t{shape_.num_kv_heads} * shape_.group * shape_.head_dim;
  }
  float scale() const { return 1.0F / std::sqrt(static_cast<float>(shape_.head_dim)); }
  int64_t token_stride() const {
    return int64_t{shape_.head_dim} * (shape_.head_major ? 1 : shape_.num_kv_heads);
  }
  int64_t head_stride() const {
    return int64_t{shape_.head_dim} * (shape_.head_major ? kHeadTokens : 1);
  }

  std::unique_ptr<Cache> MakeArray(int32_t seq_len) const {
    const int64_t tokens = shape_.head_major ? kHeadTokens : RoundUp(seq_len, kReadAhead);
    return std::make_unique<Cache>(shape_.dtype, tokens * shape_.num_kv_heads * shape_.head_dim);
  }

  void WriteToken(size_t seq, int32_t token, Random& random) {
    const int32_t index = token / shape_.block_size_tokens;
    const int64_t slot = token % shape_.block_size_tokens;
    const BlockId block =
        tables_[seq * static_cast<size_t>(max_blocks_) + static_cast<size_t>(index)];
    for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
      const int64_t in_array = token * token_stride() + head * head_stride();
      const int64_t key = layout_.KeyOffset(block, 0, head) + slot * layout_.key_slot_stride;
      const int64_t value = layout_.ValueOffset(block, 0, head) + slot * layout_.value_slot_stride;
      for (int32_t d = 0; d < shape_.head_dim; ++d) {
        const uint32_t k = StoredNumber(shape_.dtype, random);
        const uint32_t v =
            d == kDenormalDim ? DenormalNumber(random) : StoredNumber(shape_.dtype, random);
        pool_->Set(key + d * layout_.key_dim_stride, k);
        pool_->Set(value + d, v);
        keys_[seq]->Set(in_array + d, k);
        values_[seq]->Set(in_array + d, v);
      }
    }
  }

  static constexpr int64_t kHeadTokens = 5008;  // room for a head's tokens in a head-major array

  const Shape shape_;
  KvCacheLayout layout_;
  int32_t num_blocks_ = 0;
  int32_t max_blocks_ = 0;
  std::unique_ptr<Cache> pool_;
  std::vector<BlockId> tables_;
  std::vector<std::unique_ptr<Cache>> keys_;
  std::vector<std::unique_ptr<Cache>> values_;
  std::vector<const void*> key_arrays_;
  std::vector<const void*> value_arrays_;
  std::vector<float> q_;
  std::vector<int32_t> query_start_;
};

using Path = std::tuple<std::string, DType>;

class ContiguousAttentionTest : public testing::TestWithParam<Path> {
 protected:
  void SetUp() override {
    const auto& [isa, dtype] = GetParam();
    for (const KernelTable& table : KernelTables()) {
      table_ = isa == table.isa && IsSupported(table) ? &table : table_;
    }
    if (table_ == nullptr) {
      GTEST_SKIP() << "this machine lacks " << isa;
    }
    kernel_ = FindContiguousAttention(isa, dtype);
    ASSERT_NE(kernel_, nullptr);
  }

  const KernelTable* table_ = nullptr;
  ContiguousAttention kernel_ = nullptr;
};

TEST_P(ContiguousAttentionTest, HasTheBitsOfPagedAttention) {
  constexpr int kNumShapes = 60;
  ThreadTeam team(2);
  for (uint64_t seed = 1; seed <= kNumShapes; ++seed) {
    Random random(seed);
    const Shape shape = RandomShape(std::get<DType>(GetParam()), random);
    const BothCaches caches(shape, random);

    const std::vector<float> paged = caches.Paged(*table_, team);
    const std::vector<float> contiguous = caches.Contiguous(kernel_, team);

    ASSERT_EQ(std::memcmp(paged.data(), contiguous.data(), paged.size() * sizeof(float)), 0)
        << "seed " << seed << ": " << shape.ToString();
    ASSERT_FALSE(std::isnan(paged[0])) << "seed " << seed << ": " << shape.ToString();
  }
}

INSTANTIATE_TEST_SUITE_P(,
                         ContiguousAttentionTest,
                         testing::Values(Path("avx512", DType::kF32),
                                         Path("amx", DType::kF32),
                                         Path("avx512bf16", DType::kBF16),
                                         Path("amx", DType::kBF16)),
                         [](const testing::TestParamInfo<Path>& path) {
                           return std::get<0>(path.param) + "_" +
                                  std::string(NameOf(std::get<1>(path.param)));
                         });

}  // namespace
}  // namespace quire
