// Every field of the operations' parameters that a kernel reads changes the digest.
#include "kernels/gpu/operation_digest.h"

#include <array>
#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace quire {
namespace {

template <typename Params>
using Changes = std::vector<std::function<void(Params&)>>;

template <typename Params>
uint64_t DigestOf(const Params& params) {
  OperationDigest digest;
  digest.Add(params);
  return digest.value();
}

// Checks that the unchanged parameters and all changes have different digests.
template <typename Params>
void ExpectDifferent(const Changes<Params>& changes) {
  std::set<uint64_t> seen = {DigestOf(Params{})};
  for (size_t i = 0; i < changes.size(); ++i) {
    Params params;
    changes[i](params);
    EXPECT_TRUE(seen.insert(DigestOf(params)).second) << "change " << i;
    EXPECT_EQ(DigestOf(params), DigestOf(Params(params)));
  }
}

// Addresses that differ.
std::array<float, 16> memory;
std::array<int32_t, 16> ints;
std::array<int64_t, 16> longs;

TEST(OperationDigestTest, EveryFieldOfNormCounts) {
  ExpectDifferent<NormParams>({[](auto& p) { p.kind = NormKind::kLayerNorm; },
                               [](auto& p) { p.num_tokens = 1; },
                               [](auto& p) { p.width = 1; },
                               [](auto& p) { p.residual = &memory[0]; },
                               [](auto& p) { p.delta = &memory[0]; },
                               [](auto& p) { p.weight = &memory[0]; },
                               [](auto& p) { p.weight = &memory[1]; },
                               [](auto& p) { p.bias = &memory[0]; },
                               [](auto& p) { p.eps = 1.0F; },
                               [](auto& p) { p.out = &memory[0]; },
                               [](auto& p) { p.out_f32 = &memory[0]; }});
}

TEST(OperationDigestTest, EveryFieldOfEmbedCounts) {
  ExpectDifferent<EmbeddingParams>({[](auto& p) { p.num_tokens = 1; },
                                    [](auto& p) { p.token_ids = &ints[0]; },
                                    [](auto& p) { p.table.data = &memory[0]; },
                                    [](auto& p) { p.table.format = WeightFormat::kBF16; },
                                    [](auto& p) { p.table.rows = 1; },
                                    [](auto& p) { p.table.cols = 1; },
                                    [](auto& p) { p.table.skipped_cols = 1; },
                                    [](auto& p) { p.first_token = 1; },
                                    [](auto& p) { p.position_table.data = &memory[0]; },
                                    [](auto& p) { p.position_table.rows = 1; },
                                    [](auto& p) { p.positions = &ints[0]; },
                                    [](auto& p) { p.position_offset = 1; },
                                    [](auto& p) { p.out_dtype = DType::kBF16; },
                                    [](auto& p) { p.out = &memory[0]; }});
}

TEST(OperationDigestTest, EveryFieldOfLinearActivateAndCollectivesCounts) {
  ExpectDifferent<LinearParams>({[](auto& p) { p.num_tokens = 1; },
                                 [](auto& p) { p.x = &memory[0]; },
                                 [](auto& p) { p.y = &memory[0]; },
                                 [](auto& p) { p.f32_out = true; }});
  ExpectDifferent<ActivationParams>({[](auto& p) { p.kind = ActivationKind::kRelu; },
                                     [](auto& p) { p.gated = false; },
                                     [](auto& p) { p.num_tokens = 1; },
                                     [](auto& p) { p.width = 1; },
                                     [](auto& p) { p.in = &memory[0]; },
                                     [](auto& p) { p.out = &memory[0]; }});
  ExpectDifferent<AllReduceParams>({[](auto& p) { p.num_rows = 1; },
                                    [](auto& p) { p.width = 1; },
                                    [](auto& p) { p.merge = Merge::kDisjoint; },
                                    [](auto& p) { p.dtype = DType::kBF16; },
                                    [](auto& p) { p.data = &memory[0]; },
                                    [](auto& p) { p.bias = &memory[0]; }});
  ExpectDifferent<GatherParams>({[](auto& p) { p.num_rows = 1; },
                                 [](auto& p) { p.widths = std::span(longs).first(1); },
                                 [](auto& p) { p.widths = std::span(longs).first(2); },
                                 [](auto& p) { p.part = &memory[0]; },
                                 [](auto& p) { p.whole = &memory[0]; }});
}

TEST(OperationDigestTest, EveryFieldOfPrepareAttentionCounts) {
  ExpectDifferent<PrepareAttentionParams>({[](auto& p) { p.num_tokens = 1; },
                                           [](auto& p) { p.num_heads = 1; },
                                           [](auto& p) { p.layer = 1; },
                                           [](auto& p) { p.qkv = &memory[0]; },
                                           [](auto& p) { p.q_norm = &memory[0]; },
                                           [](auto& p) { p.k_norm = &memory[0]; },
                                           [](auto& p) { p.norm_eps = 1.0F; },
                                           [](auto& p) { p.rope_cos = &memory[0]; },
                                           [](auto& p) { p.rope_sin = &memory[0]; },
                                           [](auto& p) { p.positions = &ints[0]; },
                                           [](auto& p) { p.slot_mapping = &longs[0]; },
                                           [](auto& p) { p.cache.base = &memory[0]; },
                                           [](auto& p) { p.cache.num_blocks = 1; },
                                           [](auto& p) { p.cache.windows = &memory[0]; },
                                           [](auto& p) { p.cache.layout.dtype = DType::kBF16; },
                                           [](auto& p) { p.cache.layout.block_stride = 1; },
                                           [](auto& p) { p.cache.layout.value_offset = 1; },
                                           [](auto& p) { p.k_scale = 2.0F; },
                                           [](auto& p) { p.v_scale = 2.0F; }});
}

TEST(OperationDigestTest, EveryFieldOfPagedAttentionCounts) {
  ExpectDifferent<PagedAttentionParams>({[](auto& p) { p.num_seqs = 1; },
                                         [](auto& p) { p.num_heads = 1; },
                                         [](auto& p) { p.layer = 1; },
                                         [](auto& p) { p.q = &memory[0]; },
                                         [](auto& p) { p.q_row_stride = 1; },
                                         [](auto& p) { p.out = &memory[0]; },
                                         [](auto& p) { p.scale = 2.0F; },
                                         [](auto& p) { p.sliding_window = 1; },
                                         [](auto& p) { p.alibi_slopes = &memory[0]; },
                                         [](auto& p) { p.query_start = &ints[0]; },
                                         [](auto& p) { p.seq_lens = &ints[0]; },
                                         [](auto& p) { p.block_tables = &ints[0]; },
                                         [](auto& p) { p.max_blocks_per_seq = 1; },
                                         [](auto& p) { p.first_places = &longs[0]; },
                                         [](auto& p) { p.cache.base = &memory[0]; },
                                         [](auto& p) { p.k_scale = 2.0F; },
                                         [](auto& p) { p.v_scale = 2.0F; }});
}

TEST(OperationDigestTest, OrderAndKindCount) {
  OperationDigest first;
  first.Add(LinearParams{.num_tokens = 1});
  first.Add(NormParams{});
  OperationDigest second;
  second.Add(NormParams{});
  second.Add(LinearParams{.num_tokens = 1});
  EXPECT_NE(first.value(), second.value());
}

}  // namespace
}  // namespace quire
