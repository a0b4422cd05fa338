// AttentionProblem says what attention is to be computed; AttentionData makes up its inputs on the
// host; DeviceAttention brings them to the device. ExpectClose compares with kernels/reference.
// Shared by the tests of decode and prefill.
//
// Every element of q, k and v is a function of (sequence key, position, head, dim), so that a
// sequence has the same numbers whole or in part, alone or beside others, wherever its blocks lie.
// All that must not be read is NaN: slots that no sequence needs (behind its end, before its
// window, other layers, the null block), the k and v part of the rows of q, the output before the
// call. Blocks that lie wholly before the window of a sequence's first query are not in its block
// table.
//
// Usage: AttentionData makes up a problem's inputs, DeviceAttention brings them to the device and
// has the params to call an operation with, and ExpectClose compares its output.
#ifndef QUIRE_TESTS_KERNELS_CUDA_ATTENTION_DATA_H_
#define QUIRE_TESTS_KERNELS_CUDA_ATTENTION_DATA_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

#include "common/model/kv_cache_spec.h"
#include "kernels/cuda/gpu_ops.h"
#include "kernels/reference/element.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/swizzled_rows.h"

namespace quire::gpu {

struct AttentionSequence {
  int32_t query_len = 1;
  int32_t seq_len = 1;  // with the queries; 0: padding, its queries are NaN
  uint64_t key = 1;     // names the sequence: same key, same numbers
};

struct AttentionProblem {
  DType dtype = DType::kBF16;
  DType cache_dtype = DType::kBF16;
  int32_t head_dim = 64;
  int32_t num_heads = 4;
  int32_t num_kv_heads = 2;
  int32_t block_size_tokens = 16;
  int32_t sliding_window = 0;
  bool alibi = false;
  float soft_cap = 0.0F;
  std::vector<float> sinks;  // [num_heads], or empty
  float k_scale = 1.0F;
  float v_scale = 1.0F;
  float scale = 0.0F;       // 0: head_dim to the power of -1/2
  float query_size = 1.0F;  // q's elements are about this large
  bool has_gaps = false;    // between heads, layers and blocks: other strides
  uint64_t block_seed = 1;  // which physical blocks the sequences get
  std::vector<AttentionSequence> sequences;
};

// ---- Numbers ------------------------------------------------------------------------------------

inline uint64_t MixBits(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

enum class NumberKind : uint8_t { kQuery, kKey, kValue };

// About normal, with variance 1: the sum of four uniform numbers.
inline float NumberFor(uint64_t key, NumberKind kind, int32_t position, int32_t head, int32_t dim) {
  uint64_t bits = MixBits(key * 3 + static_cast<uint64_t>(kind));
  bits = MixBits(bits + static_cast<uint64_t>(position));
  bits = MixBits(bits + static_cast<uint64_t>(head) * 512 + static_cast<uint64_t>(dim));
  double sum = 0.0;
  for (int i = 0; i < 4; ++i) {
    sum += static_cast<double>((bits >> (16 * i)) & 0xFFFF) / 65536.0 - 0.5;
  }
  return static_cast<float>(sum * std::sqrt(3.0));
}

// The value of an element of a 16-bit type.
inline float ValueOf(DType dtype, uint16_t bits) { return reference::LoadElement(&bits, dtype, 0); }

// Converts without rounding.
inline std::vector<float> Widened(DType dtype, const std::vector<uint8_t>& bytes) {
  std::vector<float> values(bytes.size() / static_cast<size_t>(SizeOf(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = reference::LoadElement(bytes.data(), dtype, static_cast<int64_t>(i));
  }
  return values;
}

// ---- Inputs -------------------------------------------------------------------------------------

class AttentionData {
 public:
  static constexpr int32_t kNumLayers = 2;
  static constexpr int32_t kLayer = 1;

  explicit AttentionData(const AttentionProblem& problem) : problem_(problem) {
    MakeLayout();
    MakeBlockTables();
    MakeCache();
    MakeQueries();
  }

  const AttentionProblem& problem() const { return problem_; }
  const KvCacheLayout& layout() const { return layout_; }
  int64_t num_blocks() const { return num_blocks_; }
  int32_t num_tokens() const { return query_start_.back(); }
  int64_t q_row_stride() const {
    return int64_t{problem_.num_heads + 2 * problem_.num_kv_heads} * problem_.head_dim;
  }

  const std::vector<uint8_t>& q() const { return q_; }
  const std::vector<uint8_t>& pool() const { return pool_; }
  const std::vector<BlockId>& block_tables() const { return block_tables_; }
  const std::vector<int32_t>& query_start() const { return query_start_; }
  const std::vector<int32_t>& seq_lens() const { return seq_lens_; }
  const std::vector<float>& alibi_slopes() const { return alibi_slopes_; }

  // index: in q, [num_tokens, q_row_stride].
  void SetQuery(int64_t index, float value) {
    reference::StoreElement(q_.data(), problem_.dtype, index, value);
  }

  // The params, except q, the output and the pool.
  PagedAttentionParams Params() const {
    const float head_dim = static_cast<float>(problem_.head_dim);
    return {.num_seqs = static_cast<int32_t>(problem_.sequences.size()),
            .num_heads = problem_.num_heads,
            .layer = kLayer,
            .q_row_stride = q_row_stride(),
            .scale = problem_.scale > 0.0F ? problem_.scale : 1.0F / std::sqrt(head_dim),
            .sliding_window = problem_.sliding_window,
            .soft_cap = problem_.soft_cap,
            .alibi_slopes = problem_.alibi ? alibi_slopes_.data() : nullptr,
            .sinks = problem_.sinks.empty() ? nullptr : problem_.sinks.data(),
            .query_start = query_start_.data(),
            .seq_lens = seq_lens_.data(),
            .block_tables = block_tables_.data(),
            .max_blocks_per_seq = max_blocks_per_seq_,
            .cache = {nullptr, num_blocks_, layout_},
            .k_scale = problem_.k_scale,
            .v_scale = problem_.v_scale};
  }

  // [num_tokens, num_heads * head_dim]; rows of padding are 0.
  std::vector<float> Reference() const {
    const std::vector<float> q = Widened(problem_.dtype, q_);
    std::vector<float> pool = Widened(problem_.cache_dtype, plain_pool_);
    std::vector<float> out(static_cast<size_t>(num_tokens()) * OutWidth(), 0.0F);
    PagedAttentionParams params = Params();
    params.q = q.data();
    params.out = out.data();
    params.cache.base = pool.data();
    params.cache.layout = plain_layout_;
    params.cache.layout.dtype = DType::kF32;
    reference::PagedAttention(params);
    return out;
  }

  // Elements of a row of the output.
  size_t OutWidth() const { return static_cast<size_t>(problem_.num_heads * problem_.head_dim); }

 private:
  void MakeLayout() {
    const KvCacheSpec spec = {.num_layers = kNumLayers,
                              .num_kv_heads = problem_.num_kv_heads,
                              .head_dim = problem_.head_dim,
                              .block_size_tokens = problem_.block_size_tokens,
                              .dtype = problem_.cache_dtype};
    plain_layout_ = TokenMajorKeys(spec);
    layout_ = SwizzledRows(spec);
    if (problem_.has_gaps) {
      layout_.head_stride += 48;
      layout_.layer_stride = layout_.head_stride * problem_.num_kv_heads + 80;
      layout_.block_stride = layout_.layer_stride * kNumLayers + 16;
    }
  }

  static int32_t FirstKeyOf(int32_t position, int32_t window) {
    return window > 0 ? std::max(0, position - window + 1) : 0;
  }

  // The first position that any query of the sequence attends to.
  int32_t FirstNeeded(const AttentionSequence& sequence) const {
    return FirstKeyOf(std::max(0, sequence.seq_len - sequence.query_len), problem_.sliding_window);
  }

  void MakeBlockTables() {
    int32_t block_size = problem_.block_size_tokens;
    num_blocks_ = 1;
    max_blocks_per_seq_ = 1;
    for (const AttentionSequence& sequence : problem_.sequences) {
      int32_t blocks = (sequence.seq_len + block_size - 1) / block_size;
      num_blocks_ += blocks;
      max_blocks_per_seq_ = std::max(max_blocks_per_seq_, blocks);
    }
    std::vector<BlockId> ids(static_cast<size_t>(num_blocks_ - 1));
    std::iota(ids.begin(), ids.end(), 1);
    for (size_t i = ids.size(); i > 1; --i) {
      std::swap(ids[i - 1], ids[MixBits(problem_.block_seed * 4099 + i) % i]);
    }

    block_tables_.assign(problem_.sequences.size() * static_cast<size_t>(max_blocks_per_seq_),
                         kNullBlockId);
    size_t next = 0;
    for (size_t s = 0; s < problem_.sequences.size(); ++s) {
      const AttentionSequence& sequence = problem_.sequences[s];
      int32_t first = FirstNeeded(sequence) / block_size;
      for (int32_t b = 0; b * block_size < sequence.seq_len; ++b) {
        BlockId id = ids[next++];
        block_tables_[s * static_cast<size_t>(max_blocks_per_seq_) + static_cast<size_t>(b)] =
            b >= first ? id : kNullBlockId;
      }
    }
  }

  // Stores the number, divided by its scale, in both pools.
  void StoreCached(
      size_t s, int32_t kv_head, int32_t position, int32_t dim, bool is_value, float number) {
    const int32_t block_size = problem_.block_size_tokens;
    const BlockId block = block_tables_[s * static_cast<size_t>(max_blocks_per_seq_) +
                                        static_cast<size_t>(position / block_size)];
    const int32_t slot = position % block_size;
    const auto head = [&](const KvCacheLayout& layout) {
      return is_value ? layout.ValueOffset(block, kLayer, kv_head)
                      : layout.KeyOffset(block, kLayer, kv_head);
    };
    const float stored = number / (is_value ? problem_.v_scale : problem_.k_scale);
    const DType dtype = problem_.cache_dtype;
    reference::StoreElement(
        pool_.data(), dtype, head(layout_) + SwizzledElement(layout_, slot, dim), stored);
    reference::StoreElement(plain_pool_.data(),
                            dtype,
                            head(plain_layout_) + int64_t{slot} * problem_.head_dim + dim,
                            stored);
  }

  void MakeCache() {
    pool_.assign(static_cast<size_t>(layout_.block_bytes() * num_blocks_), 0xFF);
    plain_pool_.assign(static_cast<size_t>(plain_layout_.block_bytes() * num_blocks_), 0xFF);
    for (size_t s = 0; s < problem_.sequences.size(); ++s) {
      const AttentionSequence& sequence = problem_.sequences[s];
      for (int32_t position = FirstNeeded(sequence); position < sequence.seq_len; ++position) {
        for (int32_t head = 0; head < problem_.num_kv_heads; ++head) {
          for (int32_t d = 0; d < problem_.head_dim; ++d) {
            const float k = NumberFor(sequence.key, NumberKind::kKey, position, head, d);
            const float v = NumberFor(sequence.key, NumberKind::kValue, position, head, d);
            StoreCached(s, head, position, d, false, k);
            StoreCached(s, head, position, d, true, v);
          }
        }
      }
    }
  }

  void MakeQueries() {
    query_start_.assign(1, 0);
    for (const AttentionSequence& sequence : problem_.sequences) {
      query_start_.push_back(query_start_.back() + sequence.query_len);
      seq_lens_.push_back(sequence.seq_len);
    }
    q_.assign(static_cast<size_t>(num_tokens() * q_row_stride() * SizeOf(problem_.dtype)), 0xFF);
    for (size_t s = 0; s < problem_.sequences.size(); ++s) {
      const AttentionSequence& sequence = problem_.sequences[s];
      for (int32_t i = 0; i < sequence.query_len && sequence.seq_len > 0; ++i) {
        int64_t row = (query_start_[s] + i) * q_row_stride();
        int32_t position = sequence.seq_len - sequence.query_len + i;
        for (int32_t c = 0; c < static_cast<int32_t>(OutWidth()); ++c) {
          float q = NumberFor(sequence.key,
                              NumberKind::kQuery,
                              position,
                              c / problem_.head_dim,
                              c % problem_.head_dim);
          reference::StoreElement(q_.data(), problem_.dtype, row + c, q * problem_.query_size);
        }
      }
    }
    for (int32_t head = 0; head < problem_.num_heads && problem_.alibi; ++head) {
      alibi_slopes_.push_back(
          std::exp2(-8.0F * static_cast<float>(head + 1) / static_cast<float>(problem_.num_heads)));
    }
  }

  AttentionProblem problem_;
  KvCacheLayout layout_;        // of the device
  KvCacheLayout plain_layout_;  // of the reference
  int64_t num_blocks_ = 0;
  int32_t max_blocks_per_seq_ = 0;
  std::vector<uint8_t> q_;
  std::vector<uint8_t> pool_;        // in layout_
  std::vector<uint8_t> plain_pool_;  // the same numbers in plain_layout_
  std::vector<BlockId> block_tables_;
  std::vector<int32_t> query_start_;
  std::vector<int32_t> seq_lens_;
  std::vector<float> alibi_slopes_;
};

// ---- Device -------------------------------------------------------------------------------------

class DeviceAttention {
 public:
  explicit DeviceAttention(const AttentionData& data)
      : q_(data.q()),
        pool_(data.pool()),
        block_tables_(data.block_tables()),
        query_start_(data.query_start()),
        seq_lens_(data.seq_lens()),
        alibi_slopes_(data.alibi_slopes()),
        sinks_(data.problem().sinks),
        out_(static_cast<int64_t>(data.OutWidth()) * data.num_tokens()) {
    params_ = data.Params();
    params_.q = q_.data();
    params_.out = out_.data();
    params_.alibi_slopes = data.problem().alibi ? alibi_slopes_.data() : nullptr;
    params_.sinks = data.problem().sinks.empty() ? nullptr : sinks_.data();
    params_.query_start = query_start_.data();
    params_.seq_lens = seq_lens_.data();
    params_.block_tables = block_tables_.data();
    params_.cache.base = pool_.data();
  }

  const PagedAttentionParams& params() const { return params_; }

  // [num_tokens, num_heads * head_dim]: bits of the problem's dtype.
  std::vector<uint16_t> Out() const { return out_.ToHost(); }

 private:
  DeviceArray<uint8_t> q_;
  DeviceArray<uint8_t> pool_;
  DeviceArray<BlockId> block_tables_;
  DeviceArray<int32_t> query_start_;
  DeviceArray<int32_t> seq_lens_;
  DeviceArray<float> alibi_slopes_;
  DeviceArray<float> sinks_;
  DeviceArray<uint16_t> out_;
  PagedAttentionParams params_;
};

// ---- Comparison ---------------------------------------------------------------------------------

inline constexpr uint16_t kPoisonedElement = 0xFFFF;

// Error relative to the size of the expected values, in the L2 norm. Infinite for NaN.
inline double RelativeError(double difference_squares, double expected_squares) {
  double error = std::sqrt(difference_squares / expected_squares);
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

// Compares `out`, which is DeviceAttention::Out(), with the reference. Tokens that `computed` does
// not name, and padding, must still be poisoned. A null `computed` names all tokens of sequences
// that have a length.
inline void ExpectClose(const AttentionData& data,
                        const std::vector<uint16_t>& out,
                        const std::vector<bool>* computed = nullptr) {
  const AttentionProblem& problem = data.problem();
  // bf16 has 8 bits of mantissa, f16 has 11, and P is rounded as well. A single head's row may have
  // a larger error than all rows together, above all with few keys.
  double tolerance = problem.dtype == DType::kBF16 ? 4e-3 : 6e-4;
  double row_tolerance = 1.5 * tolerance;
  const std::vector<float> expected_out = data.Reference();
  ASSERT_EQ(out.size(), expected_out.size());

  double all_differences = 0.0;
  double all_expected = 0.0;
  for (size_t s = 0; s < problem.sequences.size(); ++s) {
    const AttentionSequence& sequence = problem.sequences[s];
    for (int32_t i = 0; i < sequence.query_len; ++i) {
      size_t token = static_cast<size_t>(data.query_start()[s] + i);
      bool expected = sequence.seq_len > 0 && (computed == nullptr || (*computed)[token]);
      for (size_t head = 0; head < static_cast<size_t>(problem.num_heads); ++head) {
        auto head_dim = static_cast<size_t>(problem.head_dim);
        size_t row = token * data.OutWidth() + head * head_dim;
        double differences = 0.0;
        double squares = 0.0;
        for (size_t d = row; d < row + head_dim; ++d) {
          if (!expected) {
            ASSERT_EQ(out[d], kPoisonedElement) << "written: token " << token << ", head " << head;
            continue;
          }
          double difference = double{ValueOf(problem.dtype, out[d])} - double{expected_out[d]};
          differences += difference * difference;
          squares += double{expected_out[d]} * double{expected_out[d]};
        }
        if (expected) {
          EXPECT_LT(RelativeError(differences, squares), row_tolerance)
              << "sequence " << s << " of length " << sequence.seq_len << ", query " << i
              << ", head " << head;
        }
        all_differences += differences;
        all_expected += squares;
      }
    }
  }
  if (all_expected > 0.0) {
    EXPECT_LT(RelativeError(all_differences, all_expected), tolerance);
  }
}

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_KERNELS_CUDA_ATTENTION_DATA_H_
